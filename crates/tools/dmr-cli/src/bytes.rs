//! Parses sizes of the command line.

/// Parses `8GiB`, `512 MiB`, `1.5GiB`, `4096`. Units are powers of 1024, with or without `iB`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(format!("{unit:?} is not a unit: use B, KiB, MiB, GiB or TiB")),
    };
    let too_large = || format!("{text:?} is more than 2^64 bytes");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(too_large);
    }
    match number.parse::<f64>() {
        Ok(fraction) if shift > 0 && number.contains('.') => {
            let bytes = fraction * (1_u64 << shift) as f64;
            if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(too_large()) }
        }
        _ => Err(format!("{text:?} is not a number of bytes: write 4096, 512MiB or 8GiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_plain_numbers_or_have_a_binary_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8GiB", 8 << 30),
            ("512 mib", 512 << 20),
            ("1.5g", 3 << 29),
            ("7B", 7),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_explained() {
        for text in ["", "GiB", "-1", "8GB", "1.5", "1e9", "1..5GiB", "99999999999TiB", "1.9e99g"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains('"'), "{error}");
        }
    }
}
