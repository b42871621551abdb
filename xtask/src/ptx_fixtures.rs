//! `cargo xtask ptx-fixtures`: compiles the kernels of dmr-ptx's tests to PTX and fat binaries
//! again (needs nvcc).

use std::path::Path;
use std::process::Command;

use crate::command;
use crate::failure::Failure;

/// The folder of the kernels, and of their PTX beside them.
const FOLDER: &str = "crates/simulator/dmr-ptx/tests/fixtures";

/// The fat binaries of `fatbin.cu`: the name of each, and the arguments that make it.
const FAT_BINARIES: [(&str, &str); 6] = [
    (
        "plain",
        "-compress-mode=none -gencode=arch=compute_80,code=compute_80 -gencode=arch=compute_90a,code=compute_90a \
         -gencode=arch=compute_100f,code=compute_100f",
    ),
    ("lz4", "-compress-mode=speed -gencode=arch=compute_80,code=[sm_80,compute_80]"),
    ("zstd", "-compress-mode=size -gencode=arch=compute_80,code=[sm_80,compute_80]"),
    (
        "concat",
        "-concat -gencode=arch=compute_80,code=compute_80 -gencode=arch=compute_90,code=[sm_90,compute_90]",
    ),
    ("cubin", "-compress-mode=none -gencode=arch=compute_90,code=sm_90"),
    ("lto", "-gencode=arch=compute_90,code=lto_90"),
];

/// Compiles every `.cu` file of the folder with this nvcc: `fatbin.cu` to fat binaries, the others
/// to PTX.
pub(crate) fn run(nvcc: &str) -> Result<(), Failure> {
    let folder = command::root().join(FOLDER);
    let unreadable = |error: std::io::Error| Failure::Setup(format!("{FOLDER}: {error}"));
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
        sources.push(entry.map_err(unreadable)?.path());
    }
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "cu"));
    sources.sort();
    for source in sources {
        if source.ends_with("fatbin.cu") {
            for (name, arguments) in FAT_BINARIES {
                let target = folder.join(format!("fatbin_{name}.fatbin"));
                let mut compile = Command::new(nvcc);
                compile
                    .arg("-fatbin")
                    .args(arguments.split_whitespace())
                    .arg("-o")
                    .arg(target)
                    .arg(&source);
                command::show(&mut compile)?;
            }
            continue;
        }
        let target = source.with_extension("ptx");
        let mut compile = Command::new(nvcc);
        compile
            .args(["--ptx", "-arch=compute_80", "-std=c++17", "-lineinfo", "-o"])
            .arg(&target)
            .arg(&source);
        command::show(&mut compile)?;
        let text = std::fs::read_to_string(&target).map_err(unreadable)?;
        std::fs::write(&target, portable(&source, &text)).map_err(unreadable)?;
    }
    Ok(())
}

/// Returns the text with a first line of its own, and without the folders of the machine that
/// compiled it.
fn portable(source: &Path, text: &str) -> String {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    let mut portable = format!("// PTX of {name}, compiled by `cargo xtask ptx-fixtures`.\n");
    for line in text.lines() {
        let file = line.trim_start().starts_with(".file").then(|| line.split_once('"')).flatten();
        match file {
            Some((before, path)) => {
                let name = path.rsplit('/').next().unwrap_or(path);
                portable.push_str(&format!("{before}\"{name}"));
            }
            None => portable.push_str(line),
        }
        portable.push('\n');
    }
    portable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_machine_are_left_out() {
        let text = ".target sm_80\n\t.file\t1 \"/home/me/x.cu\"\n// a/b \"c\"\n";
        let expected = "// PTX of x.cu, compiled by `cargo xtask ptx-fixtures`.\n\
                        .target sm_80\n\t.file\t1 \"x.cu\"\n// a/b \"c\"\n";
        assert_eq!(portable(Path::new("/tests/x.cu"), text), expected);
    }
}
