//! Fat binaries as nvcc writes them: the PTX of the right entry, or the reason why there is none.

use dmr_ptx::fatbin::{FatbinError, HEAD, ptx, size};
use dmr_ptx::syntax;

const PLAIN: &[u8] = include_bytes!("../fixtures/fatbin_plain.fatbin");
const LZ4: &[u8] = include_bytes!("../fixtures/fatbin_lz4.fatbin");
const ZSTANDARD: &[u8] = include_bytes!("../fixtures/fatbin_zstd.fatbin");
const TOGETHER: &[u8] = include_bytes!("../fixtures/fatbin_concat.fatbin");
const MACHINE_CODE: &[u8] = include_bytes!("../fixtures/fatbin_cubin.fatbin");
const INTERMEDIATE: &[u8] = include_bytes!("../fixtures/fatbin_lto.fatbin");

fn target(image: &[u8], sm: u32) -> String {
    let text = ptx(image, sm).unwrap();
    let module = syntax::parse(&text).unwrap();
    assert!(module.function("scale").is_some_and(|kernel| kernel.body.is_some()));
    module.target
}

#[test]
fn ptx_is_found_however_it_is_compressed() {
    for (image, compute_90) in
        [(PLAIN, "sm_90a"), (LZ4, "sm_80"), (ZSTANDARD, "sm_80"), (TOGETHER, "sm_90")]
    {
        assert_eq!(target(image, 90), compute_90);
        assert_eq!(target(image, 86), "sm_80");
        assert_eq!(size(&image[..HEAD]), Some(image.len() as u64));
    }
}

#[test]
fn text_for_one_architecture_or_family_is_taken_for_that_alone() {
    assert_eq!(target(PLAIN, 89), "sm_80");
    assert_eq!(target(PLAIN, 90), "sm_90a");
    assert_eq!(target(PLAIN, 100), "sm_100f");
    assert_eq!(target(PLAIN, 103), "sm_100f");
    assert_eq!(target(PLAIN, 120), "sm_80");
    let error = ptx(PLAIN, 75).unwrap_err().to_string();
    assert!(
        error.contains("PTX for compute_80, PTX for compute_90a, PTX for compute_100f"),
        "{error}"
    );
    assert!(error.contains("the device is sm_75"), "{error}");
}

#[test]
fn text_alone_is_returned_as_it_is() {
    assert_eq!(&*ptx(b".version 8.0\n\0rest", 90).unwrap(), b".version 8.0\n");
    assert_eq!(&*ptx(b"", 90).unwrap(), b"");
    assert_eq!(size(b".version 8.0 .target sm_80"), None);
    assert_eq!(size(&PLAIN[..HEAD - 1]), None);
}

#[test]
fn machine_code_alone_is_refused_with_its_architecture() {
    let mut cubin = vec![0; 64];
    cubin[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08");
    cubin[48..52].copy_from_slice(&0x0600_5A04u32.to_le_bytes());
    let mut older = cubin.clone();
    older[8] = 7;
    older[48..52].copy_from_slice(&0x0050_0550u32.to_le_bytes());
    for (image, found) in [
        (MACHINE_CODE, "machine code for sm_90"),
        (&cubin, "machine code for sm_90"),
        (&older, "machine code for sm_80"),
        (b"\x7fELF", "machine code for sm_0"),
        (INTERMEDIATE, "intermediate code for compute_90"),
    ] {
        let error = ptx(image, 90).unwrap_err();
        assert!(matches!(error, FatbinError::MachineCode { .. }));
        assert!(error.to_string().contains(found), "{error}");
        assert!(error.to_string().contains("-gencode arch=compute_90,code=compute_90"), "{error}");
    }
}

#[test]
fn a_length_that_nothing_is_behind_is_refused() {
    // The lengths of the container, of the entry, of its data, and of the data once it is expanded.
    let ptx_at = HEAD + 64 + 3240;
    for (at, length) in
        [(8, 8), (ptx_at + 4, 4), (ptx_at + 8, 8), (ptx_at + 16, 4), (ptx_at + 56, 8)]
    {
        let mut image = LZ4.to_vec();
        image[at..at + length].fill(0x7F);
        assert!(ptx(&image, 90).is_err(), "{at}");
    }
    // A length that is one byte too large or too small.
    for (image, entry) in [(LZ4, ptx_at), (ZSTANDARD, HEAD + 64 + 816)] {
        let length = u64::from_le_bytes(image[entry + 56..entry + 64].try_into().unwrap());
        for wrong in [length - 1, length + 1] {
            let mut image = image.to_vec();
            image[entry + 56..entry + 64].copy_from_slice(&wrong.to_le_bytes());
            assert!(matches!(ptx(&image, 90), Err(FatbinError::Damaged(_))), "{wrong}");
        }
    }
    let mut unknown = LZ4.to_vec();
    unknown[ptx_at + 41] = 0x10;
    assert!(matches!(ptx(&unknown, 90), Err(FatbinError::Compression { flags: 0x1011, .. })));
}

#[test]
fn a_damaged_image_is_an_error_or_some_text() {
    let mut random = fastrand::Rng::with_seed(1);
    for image in [PLAIN, LZ4, ZSTANDARD, TOGETHER, MACHINE_CODE] {
        for length in 0..image.len().min(400) {
            let _ = ptx(&image[..length], 90);
        }
        for _ in 0..3_000 {
            let mut damaged = image.to_vec();
            for _ in 0..random.usize(1..4) {
                // Half of the changes are in headers.
                let end = if random.bool() { 160 } else { damaged.len() };
                let at = random.usize(0..end);
                let any = random.u8(..);
                damaged[at] = random.choice([0, 1, 0x7F, 0xFF, any]).unwrap_or(0);
            }
            if let Ok(text) = ptx(&damaged, 90) {
                let _ = syntax::parse(&text);
            }
        }
    }
}
