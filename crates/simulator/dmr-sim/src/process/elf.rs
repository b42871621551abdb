//! A shared object in memory whose symbols are addresses of this process.
//!
//! The smallest ELF64 file that a dynamic linker accepts and `dlsym` finds symbols in: one loaded
//! segment with `.dynamic`, `.dynsym`, `.dynstr` and `.hash`. Symbols are `SHN_ABS`, so their
//! values are used as they are (glibc 2.28 or later). Layout as in the System V ABI, chapters 4
//! and 5.

const EHDR: usize = 64;
const PHDR: usize = 56;
const SYM: usize = 24;
const DYN: usize = 16;

const ET_DYN: u16 = 3;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: u16 = 0;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// The program header without which glibc makes every thread's stack executable.
const PT_GNU_STACK: u32 = 0x6474_e551;
const READ_WRITE: u32 = 6;
/// Segments are aligned to a page, and AArch64 kernels may have pages of 64 KiB.
const LARGEST_PAGE: u64 = 0x1_0000;

const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;

const SHN_ABS: u16 = 0xfff1;
const GLOBAL_FUNCTION: u8 = (1 << 4) | 2;

/// Returns the bytes of a shared object named `soname` that exports `symbols` at the given
/// addresses.
pub(crate) fn shared_object(soname: &str, symbols: &[(&str, u64)]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut intern = |name: &str| {
        let at = strings.len() as u32;
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
        at
    };
    let soname_at = intern(soname);
    let names: Vec<u32> = symbols.iter().map(|(name, _)| intern(name)).collect();

    let phdrs = 3;
    let dynamic_at = EHDR + phdrs * PHDR;
    let dynamic_len = 7 * DYN;
    let symbols_at = dynamic_at + dynamic_len;
    let symbols_len = (symbols.len() + 1) * SYM;
    let hash_at = symbols_at + symbols_len;
    let hash = hash_table(symbols);
    let strings_at = hash_at + 4 * hash.len();
    let total = strings_at + strings.len();

    let mut out = Bytes(Vec::with_capacity(total));
    // ELF header: 64-bit, little-endian, version 1, System V.
    out.0.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.u16(ET_DYN).u16(MACHINE).u32(1);
    out.u64(0).u64(EHDR as u64).u64(0).u32(0); // entry, program headers, section headers, flags
    out.u16(EHDR as u16).u16(PHDR as u16).u16(phdrs as u16);
    out.u16(0).u16(0).u16(0);
    // The dynamic linker adds the load address to pointers inside `.dynamic`: writable.
    out.program_header(PT_LOAD, 0, total, LARGEST_PAGE);
    out.program_header(PT_DYNAMIC, dynamic_at, dynamic_len, 8);
    out.program_header(PT_GNU_STACK, 0, 0, 16);
    for (tag, value) in [
        (DT_SONAME, soname_at as usize),
        (DT_HASH, hash_at),
        (DT_STRTAB, strings_at),
        (DT_SYMTAB, symbols_at),
        (DT_STRSZ, strings.len()),
        (DT_SYMENT, SYM),
        (DT_NULL, 0),
    ] {
        out.u64(tag).u64(value as u64);
    }
    out.0.extend_from_slice(&[0; SYM]); // the null symbol
    for (&name, &(_, address)) in names.iter().zip(symbols) {
        out.u32(name);
        out.0.extend_from_slice(&[GLOBAL_FUNCTION, 0]);
        out.u16(SHN_ABS).u64(address).u64(0);
    }
    for word in hash {
        out.u32(word);
    }
    out.0.extend_from_slice(&strings);
    debug_assert_eq!(out.0.len(), total);
    out.0
}

/// `DT_HASH`: bucket count, chain count, buckets, chains; entry 0 is the null symbol.
fn hash_table(symbols: &[(&str, u64)]) -> Vec<u32> {
    let buckets = 64;
    let mut table = vec![0u32; 2 + buckets + symbols.len() + 1];
    table[0] = buckets as u32;
    table[1] = symbols.len() as u32 + 1;
    for (i, (name, _)) in symbols.iter().enumerate() {
        let bucket = 2 + sysv_hash(name) as usize % buckets;
        let entry = i + 1;
        table[2 + buckets + entry] = table[bucket];
        table[bucket] = entry as u32;
    }
    table
}

/// The hash function of the System V ABI.
fn sysv_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn program_header(&mut self, kind: u32, at: usize, len: usize, align: u64) {
        self.u32(kind).u32(READ_WRITE);
        self.u64(at as u64).u64(at as u64).u64(at as u64);
        self.u64(len as u64).u64(len as u64).u64(align);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_abi() {
        // Reference values of the ABI's C function.
        assert_eq!(sysv_hash(""), 0);
        assert_eq!(sysv_hash("printf"), 0x077905a6);
        assert_eq!(sysv_hash("exit"), 0x0006cf04);
    }
}
