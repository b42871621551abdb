//! Functions of one value, on single values and on pairs of them in one register.

use super::exact::Format;
use super::integer::low;

/// Applies `f` to the value, or to both values of a pair.
#[inline(always)]
pub(super) fn spread1(format: Format, pair: bool, a: u64, f: impl Fn(u64) -> u64) -> u64 {
    let bits = format.bits();
    if pair { f(low(a, bits)) | f(low(a >> bits, bits)) << bits } else { f(a) }
}

/// Applies `f` to the two values, or to those of each half of two pairs.
#[inline(always)]
pub(super) fn spread2(
    format: Format,
    pair: bool,
    a: u64,
    b: u64,
    f: impl Fn(u64, u64) -> u64,
) -> u64 {
    let bits = format.bits();
    if pair {
        f(low(a, bits), low(b, bits)) | f(low(a >> bits, bits), low(b >> bits, bits)) << bits
    } else {
        f(a, b)
    }
}

/// Applies `f` to the three values, or to those of each half of three pairs.
#[inline(always)]
pub(super) fn spread3(
    format: Format,
    pair: bool,
    a: u64,
    b: u64,
    c: u64,
    f: impl Fn(u64, u64, u64) -> u64,
) -> u64 {
    let bits = format.bits();
    if pair {
        let high = f(low(a >> bits, bits), low(b >> bits, bits), low(c >> bits, bits));
        f(low(a, bits), low(b, bits), low(c, bits)) | high << bits
    } else {
        f(a, b, c)
    }
}
