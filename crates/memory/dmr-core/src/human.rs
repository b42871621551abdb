//! Sizes in messages.

/// Formats a number of bytes for a message: `4 MiB`, `2.1 GiB`, `1000 B`.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 || (bytes < 1 << 20 && !bytes.is_multiple_of(1024)) {
        return format!("{bytes} B");
    }
    let mut scaled = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that rounds to 1024.0 is shown as 1 of the next unit.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let digits = format!("{scaled:.1}");
    format!("{} {}", digits.strip_suffix(".0").unwrap_or(&digits), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_messages_have_the_largest_unit_that_fits() {
        let shown: Vec<_> = [1, 1000, 4 << 10, 1025, 4 << 20, 2_254_857_830, 8 << 30]
            .into_iter()
            .map(human_bytes)
            .collect();
        assert_eq!(shown, ["1 B", "1000 B", "4 KiB", "1025 B", "4 MiB", "2.1 GiB", "8 GiB"]);
        let rounded = [(5 << 20) - 1, (1 << 30) - 1, u64::MAX].map(human_bytes);
        assert_eq!(rounded, ["5 MiB", "1 GiB", "16 EiB"]);
    }
}
