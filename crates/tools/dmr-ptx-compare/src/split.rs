//! Splits a PTX text into parts, which drivers compile side by side.

/// Returns parts of about `bytes` bytes. Each has all variables and functions, and some of the
/// kernels.
#[must_use]
pub fn split(text: &str, bytes: usize) -> Vec<String> {
    let mut head = String::new();
    let mut kernels = Vec::new();
    let mut in_kernel = false;
    for line in text.split_inclusive('\n') {
        let words = line.strip_prefix(".visible ").or(line.strip_prefix(".weak ")).unwrap_or(line);
        if words.starts_with(".entry ") {
            in_kernel = true;
            kernels.push(String::new());
        } else if words.starts_with(".func ") {
            in_kernel = false;
        }
        match kernels.last_mut() {
            Some(kernel) if in_kernel => kernel.push_str(line),
            _ => head.push_str(line),
        }
    }
    let mut parts: Vec<String> = Vec::new();
    let mut room = 0;
    for kernel in kernels {
        if parts.is_empty() || kernel.len() > room {
            parts.push(head.clone());
            room = bytes;
        }
        room = room.saturating_sub(kernel.len());
        parts.iter_mut().last().into_iter().for_each(|part| part.push_str(&kernel));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_the_functions_and_each_kernel_is_in_one() {
        let text = ".version 8.8\n.func help\n(\n)\n;\n.visible .entry one()\n{\n}\n.visible .entry two()\n{\n{}\n}\n\
                    .func help()\n{\n}\n.visible .entry three()\n{\n}\n";
        let parts = split(text, 30);
        assert_eq!(parts.len(), 3);
        for (part, name) in parts.iter().zip(["one", "two", "three"]) {
            assert!(
                part.starts_with(".version 8.8\n.func help\n(\n)\n;\n.func help()\n{\n}\n"),
                "{part}"
            );
            assert_eq!(part.matches(".entry").count(), 1);
            assert!(part.contains(&format!(".entry {name}()")));
        }
        assert_eq!(split(text, 1000).len(), 1);
    }
}
