//! Prints how many instructions of threads a second the interpreter executes: an axpy, a reduction in shared memory, an
//! integer hash, each with all checks and with none; with an argument, only that kernel.

#![allow(clippy::print_stdout, reason = "a program that prints its measurement")]

use std::time::Instant;

use dmr_ptx::{Access, AccessError, Checks, GlobalMemory, Launch, Program};

const BASE: u64 = 0x1000_0000_0000;
const HEADER: &str = ".version 8.4\n.target sm_80\n.address_size 64\n";

const AXPY: &str = ".visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<5>; .reg .pred %p;
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1; @%p bra end;
    cvta.to.global.u64 %rd3, %rd1; cvta.to.global.u64 %rd4, %rd2; mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5; add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f1, [%rd6]; ld.global.f32 %f2, [%rd7]; fma.rn.f32 %f3, %f1, 0f40000000, %f2;
    st.global.f32 [%rd7], %f3;
    end: ret; }";

const REDUCTION: &str = ".visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .b32 %r<19>; .reg .b64 %rd<9>; .reg .f32 %f<5>; .reg .pred %p; .shared .align 4 .b8 tile[1024];
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %rd5, %r5, 4; add.s64 %rd6, %rd1, %rd5; ld.global.f32 %f1, [%rd6];
    mov.u32 %r6, tile; shl.b32 %r7, %r4, 2; add.u32 %r8, %r6, %r7; st.shared.f32 [%r8], %f1; mov.u32 %r9, 128;
    loop: bar.sync 0; setp.ge.u32 %p, %r4, %r9; @%p bra skip;
    shl.b32 %r10, %r9, 2; add.u32 %r11, %r8, %r10; ld.shared.f32 %f2, [%r11]; ld.shared.f32 %f3, [%r8];
    add.f32 %f3, %f2, %f3; st.shared.f32 [%r8], %f3;
    skip: shr.u32 %r9, %r9, 1; setp.ne.u32 %p, %r9, 0; @%p bra loop;
    setp.ne.u32 %p, %r4, 0; @%p bra end; ld.shared.f32 %f4, [tile];
    mul.wide.u32 %rd5, %r2, 4; add.s64 %rd7, %rd2, %rd5; st.global.f32 [%rd7], %f4;
    end: ret; }";

const HASH: &str = ".visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .b32 %r<19>; .reg .b64 %rd<9>; .reg .pred %p;
    ld.param.u64 %rd2, [y]; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4; mov.u32 %r6, %r5; mov.u32 %r7, 0;
    loop: xor.b32 %r6, %r6, %r7; mul.lo.u32 %r6, %r6, 0x85ebca6b; shr.u32 %r8, %r6, 13; xor.b32 %r6, %r6, %r8;
    shf.l.wrap.b32 %r6, %r6, %r6, 7; add.u32 %r7, %r7, 1; setp.lt.u32 %p, %r7, 200; @%p bra loop;
    mul.wide.u32 %rd5, %r5, 4; add.s64 %rd7, %rd2, %rd5; st.global.u32 [%rd7], %r6; ret; }";

struct Bytes(Vec<u8>);

impl Bytes {
    fn part(&mut self, access: &Access) -> Result<&mut [u8], AccessError> {
        let start = access.address.wrapping_sub(BASE) as usize;
        let error = || AccessError::new(0, "out of bounds");
        self.0.get_mut(start..start.saturating_add(access.bytes as usize)).ok_or_else(error)
    }
}

impl GlobalMemory for Bytes {
    fn read(&mut self, access: &Access, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(self.part(access)?);
        Ok(())
    }

    fn write(&mut self, access: &Access, bytes: &[u8]) -> Result<(), AccessError> {
        self.part(access)?.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(
        &mut self,
        access: &Access,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessError> {
        change(self.part(access)?);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads: u32 = 1 << 18;
    let mut memory = Bytes(vec![0; 8 * threads as usize]);
    let params = [
        BASE.to_le_bytes(),
        (BASE + 4 * u64::from(threads)).to_le_bytes(),
        u64::from(threads).to_le_bytes(),
    ];
    let params = params.concat();
    let only = std::env::args().nth(1);
    for (name, text, rounds) in [("axpy", AXPY, 8), ("reduction", REDUCTION, 2), ("hash", HASH, 1)]
    {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        let program = Program::load(&format!("{HEADER}{text}"))?;
        let kernel = program.kernel("k").ok_or("no kernel")?;
        for (checked, checks) in [("all checks", Checks::all()), ("no checks", Checks::none())] {
            let mut launch = Launch::new(&program, kernel, [threads / 256, 1, 1], [256, 1, 1]);
            (launch.params, launch.checks) = (&params, checks);
            let (start, mut instructions) = (Instant::now(), 0);
            for _ in 0..rounds {
                instructions += launch.run(&mut memory)?.thread_instructions;
            }
            let rate = instructions as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!("{name:10} {checked:10} {rate:8.1} million thread instructions a second");
        }
    }
    Ok(())
}
