//! Numbers in few bytes: seven bits a byte, the lowest first; signed ones folded around zero.

use crate::Problem;

/// Appends a number: one byte below 128, ten at most.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends the difference of two numbers, which wraps.
#[inline]
pub(crate) fn put_delta(out: &mut Vec<u8>, from: u64, to: u64) {
    let delta = to.wrapping_sub(from) as i64;
    put(out, ((delta << 1) ^ (delta >> 63)) as u64);
}

/// The bytes of a chunk, and how far they have been read.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) bytes: Vec<u8>,
    pub(crate) at: usize,
}

impl Cursor {
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, Problem> {
        let byte = *self.bytes.get(self.at).ok_or(Problem::Ends)?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn slice(&mut self, len: usize) -> Result<&[u8], Problem> {
        let end = self.at.checked_add(len).ok_or(Problem::Ends)?;
        let slice = self.bytes.get(self.at..end).ok_or(Problem::Ends)?;
        self.at = end;
        Ok(slice)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Result<u64, Problem> {
        let mut number = 0;
        let mut shift = 0;
        loop {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Problem::TooLarge);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            if shift == 63 {
                return Err(Problem::TooLarge);
            }
            shift += 7;
        }
    }

    pub(crate) fn number_as<T: TryFrom<u64>>(&mut self) -> Result<T, Problem> {
        T::try_from(self.number()?).map_err(|_| Problem::TooLarge)
    }

    #[inline]
    pub(crate) fn delta(&mut self, from: u64) -> Result<u64, Problem> {
        let folded = self.number()?;
        let delta = ((folded >> 1) as i64) ^ -((folded & 1) as i64);
        Ok(from.wrapping_add(delta as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_differences_come_back_at_their_limits() {
        for number in [0, 1, 127, 128, 1 << 40, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            put_delta(&mut bytes, number, 7);
            put_delta(&mut bytes, 7, number);
            let mut cursor = Cursor { bytes, at: 0 };
            assert_eq!(cursor.number(), Ok(number));
            assert_eq!(cursor.delta(number), Ok(7));
            assert_eq!(cursor.delta(7), Ok(number));
            assert!(cursor.is_at_end());
            assert_eq!(cursor.number(), Err(Problem::Ends));
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        let bytes = vec![0xff; 11];
        assert_eq!(Cursor { bytes, at: 0 }.number(), Err(Problem::TooLarge));
    }
}
