//! The model, on the host: integers that wrap, so that device and host compute the same.
//!
//! A token is a row of the weights. The cache entry of the token at position `t` is its row times
//! `t + 1`. The next token mixes all entries so far with the row of the current one, column by
//! column, and adds the columns up.

/// The number of different tokens.
pub const VOCABULARY: usize = 256;
/// Columns of the weights, and of a cache entry.
pub const COLUMNS: usize = 128;
/// Cache entries of one page.
pub const PAGE_TOKENS: usize = 16;
/// The maximum number of pages of one request.
pub const MAX_PAGES: usize = 8;
/// Elements of one page.
pub const PAGE_LEN: usize = PAGE_TOKENS * COLUMNS;
/// The maximum number of tokens of one request, its prompt included.
pub const MAX_TOKENS: usize = MAX_PAGES * PAGE_TOKENS;

/// Returns the weights, row by row.
#[must_use]
pub fn weights() -> Vec<u32> {
    let mut state = 0x9E37_79B9_u32;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    std::iter::repeat_with(next).take(VOCABULARY * COLUMNS).collect()
}

/// Returns the prompt of a request.
#[must_use]
pub fn prompt(request: usize, len: usize) -> Vec<u32> {
    (0..len).map(|index| ((request * 7919 + index * 104_729) % VOCABULARY) as u32).collect()
}

/// Returns the prompt, followed by the tokens that the model continues it with, `len` in all.
#[must_use]
pub fn continued(weights: &[u32], prompt: &[u32], len: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let row = |token: u32| &weights[token as usize * COLUMNS..][..COLUMNS];
    while tokens.len() < len {
        let current = row(tokens[tokens.len() - 1]);
        let sum = (0..COLUMNS).fold(0_u32, |sum, column| {
            let w = current[column];
            let mixed = tokens.iter().zip(1_u32..).fold(0_u32, |mixed, (token, position)| {
                let entry = row(*token)[column].wrapping_mul(position);
                mixed.wrapping_mul(31).wrapping_add(entry ^ w)
            });
            sum.wrapping_add(mixed.wrapping_mul(2 * column as u32 + 1))
        });
        tokens.push((sum ^ (sum >> 16)) % VOCABULARY as u32);
    }
    tokens
}
