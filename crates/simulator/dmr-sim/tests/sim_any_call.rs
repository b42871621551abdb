//! Random calls with random arguments, valid and not: an error code or a report, never a crash.
#![allow(unsafe_code)] // the driver is called directly, with wrong arguments on purpose

mod support;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};

use dmr_sim::{Footprint, Policy, Universe};
use support::calls::CALLS;
use support::gpu::{self, Gpu};
use support::rng::Rng;
use support::virtual_memory::{PAGE, mapped, reserve};

type Any = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;

/// The values of a program: valid, of another kind, destroyed, of another universe, invented.
struct Holdings {
    handles: Vec<u64>,
    addresses: Vec<u64>,
    devices: Vec<i32>,
    /// The memory for results.
    out: Box<[u64; 64]>,
    host: Vec<u8>,
    module: CString,
    properties: [i32; 32],
    parameters: [u64; 2],
    /// A word that is always 0: a wait for anything else would never end.
    zero: u64,
    batch: Vec<[u64; 6]>,
    random: Rng,
}

/// A device's memory.
const CAPACITY: usize = 4 << 20;
/// Bytes of the host memory for copies, which they never exceed: mappings can be larger than the
/// memory of a device, but not this large and contiguous with few calls.
const HOST: usize = 64 << 20;

unsafe extern "C" fn nothing(_: *mut c_void) {}

impl Holdings {
    fn argument(&mut self, kind: char) -> u64 {
        let random = &mut self.random;
        match kind {
            // Handles: mostly of the right kind.
            'C' | 'S' | 'E' | 'P' | 'M' | 'F' | 'G' | 'Y' | 'X' => match random.below(20) {
                0 => random.next(),
                1 | 2 => random.below(3) as u64,
                3 => *random.pick(&self.handles),
                _ => {
                    let place = "CSEPMFGY____X".find(kind).unwrap_or(0) as u64;
                    let right = self.handles.iter().filter(|handle| **handle >> 56 == 0x41 + place);
                    let right: Vec<u64> = right.copied().collect();
                    if right.is_empty() { 0 } else { *random.pick(&right) }
                }
            },
            'a' => {
                let base = *random.pick(&self.addresses);
                match random.below(6) {
                    0 => base.wrapping_add(random.below(5000) as u64),
                    1 => base.wrapping_sub(random.below(5000) as u64),
                    _ => base,
                }
            }
            // On the device: elsewhere the driver cannot check the address.
            'D' => self.argument('a').clamp(1 << 44, (1 << 44) + (1 << 41)),
            'o' if random.chance(4) => 0,
            'o' => self.out.as_ptr() as u64,
            'd' => *random.pick(&self.devices) as u64,
            's' => match random.below(8) {
                0 => u64::MAX - random.below(1 << 22) as u64,
                1 => 1 << random.below(64),
                2 => 0,
                _ => random.below(6000) as u64,
            },
            'V' if random.chance(10) => self.argument('s'),
            'V' => (1 + random.below(2) as u64) << 21,
            'z' if random.chance(4) => random.next() | 1 << 32,
            'z' => 0,
            'W' if random.chance(4) => random.below(3) as u64,
            'W' => self.zero,
            'f' => *random.pick(&[0, 0, 0, 1, 3, 4, 77, 1 << 30]),
            'b' => {
                let operation = random.below(8) as u64;
                let at = self.argument('a');
                let is_wait = matches!(operation, 1 | 4);
                let at = if is_wait { self.zero } else { at & !7 };
                self.batch[0] = [operation, at, 0, 0, 0, 0];
                self.batch.as_ptr() as u64
            }
            't' if random.chance(10) => u64::MAX - random.below(9000) as u64,
            't' => random.below(6000) as u64,
            'H' if random.chance(5) => 0,
            'H' => self.host.as_mut_ptr() as u64 + 1000 * random.below(10) as u64,
            'i' if random.chance(10) => random.next(),
            'i' => random.below(4) as u64,
            'u' if random.chance(2) => random.next(),
            'u' => 1,
            'q' => *random.pick(&[8, 8, 9, 0, 200]),
            'c' if random.chance(10) => 0,
            'c' => nothing as unsafe extern "C" fn(*mut c_void) as usize as u64,
            'm' => self.module.as_ptr() as u64,
            'e' => random.pick(&[c"touch", c"other", c"cuInit"]).as_ptr() as u64,
            'g' => random.pick(&[c"touch", c"counter"]).as_ptr() as u64,
            'p' => {
                self.properties[3] = *random.pick(&self.devices);
                self.properties[0] = random.below(3) as i32;
                self.properties.as_ptr() as u64
            }
            'l' => {
                self.properties[3] = *random.pick(&self.devices);
                self.properties[4] = *random.pick(&[3, 3, 3, 1, 0, 7]);
                &raw const self.properties[2] as u64
            }
            'k' => {
                self.parameters = [self.argument('a'), self.argument('s')];
                self.out[32] = &raw const self.parameters[0] as u64;
                self.out[33] = &raw const self.parameters[1] as u64;
                &raw const self.out[32] as u64
            }
            _ => 0,
        }
    }

    /// Keeps a value that a call has returned; replaces another one if there are many.
    fn keep(&mut self, value: u64) {
        let held = if value >> 56 >= 0x41 { &mut self.handles } else { &mut self.addresses };
        if held.len() < 80 {
            held.push(value);
        } else {
            let at = self.random.below(held.len());
            held[at] = value;
        }
    }
}

fn function(name: &CStr) -> Any {
    // SAFETY: the names are C strings; the simulated driver is loaded and stays so.
    let found = unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?}");
    // SAFETY: a function of at most eleven integers and pointers; on the platforms of the simulator
    // further arguments are the caller's responsibility.
    unsafe { std::mem::transmute::<*mut c_void, Any>(found) }
}

/// Registers the kernel that the calls launch.
fn register(universe: &Universe) {
    universe.register_kernel(
        "touch",
        |args| Footprint::new().reads(args.u64(0), args.u64(1)).writes(args.u64(0), args.u64(1)),
        |args, memory| {
            let at = args.u64(0);
            let len = args.u64(1);
            memory.fill(at, len, 7);
            memory.write(at, &[1]);
            memory.read(at.wrapping_add(len), &mut [0; 2]);
        },
    );
}

fn run(seed: u64, policy: Policy, calls: usize, codes: &mut BTreeMap<(usize, i32), u32>) {
    let universe =
        Universe::builder().policy(policy).seed(seed).capacity(CAPACITY as u64).build().unwrap();
    let gpu = Gpu::new(&universe);
    let ended = Universe::new().unwrap();
    let foreign = Universe::new().unwrap();
    // A grid of any size runs at once: as PTX, each of its threads would run.
    [&universe, &ended, &foreign].into_iter().for_each(register);
    let mut handles = Vec::new();
    for other in [&ended, &foreign, &universe, &universe] {
        let gpu = Gpu::of(other, 0);
        let stream = gpu::stream();
        let event = gpu::event();
        let pool = gpu::pool(gpu.device);
        let module = gpu::kernel(&gpu::ptx("touch", &["u64", "u64"]), "touch").unwrap();
        let context = gpu.context;
        let all = [stream as u64, event as u64, pool as u64, module as u64, context as u64];
        handles.extend(all);
        std::mem::forget(gpu);
    }
    drop(ended);
    gpu.bind();
    let range = reserve(PAGE).unwrap();
    let (page, memory) = mapped(PAGE, gpu.device);
    handles.push(memory);
    let zero = gpu::Pinned::new(8);
    let batch = vec![[0; 6]; 256];
    let mut held = Holdings {
        handles,
        addresses: vec![0, 1, u64::MAX, 1 << 44, 1 << 45, (1 << 44) + 4096, range, page],
        devices: vec![gpu.device, universe.ordinal(1) as i32, -1, i32::MAX, i32::MIN],
        out: Box::new([0; 64]),
        host: vec![0; HOST],
        module: CString::new(format!(
            "{}.global .u32 counter = 1;",
            gpu::ptx("touch", &["u64", "u64"])
        ))
        .unwrap(),
        properties: std::array::from_fn(|at| i32::from(at == 2)), // a location of type device
        parameters: [0; 2],
        zero: zero.address(),
        batch,
        random: Rng::new(seed),
    };
    let functions: Vec<Any> = CALLS.iter().map(|(name, _)| function(name)).collect();
    let end_capture = CALLS.iter().position(|(name, _)| *name == c"cuStreamEndCapture").unwrap();
    let mut capturing = None;
    for _ in 0..calls {
        let mut which = held.random.below(CALLS.len());
        // Most calls end a capture that others have begun, so some captures end at once.
        let ends_capture = capturing.take().filter(|_| held.random.chance(50));
        if ends_capture.is_some() {
            which = end_capture;
        }
        let (name, shape) = CALLS[which];
        // Calls that end or block all others are rare, or the others would not be reached.
        let rare =
            ["CtxDestroy", "CtxRelease", "CtxReset", "SetCurrent", "PopCurrent", "BeginCapture"];
        let is_rare = rare.iter().any(|part| name.to_str().unwrap().contains(part));
        if is_rare && held.random.chance(95) {
            continue;
        }
        held.out[0] = 0;
        let mut a = [0; 11];
        for (argument, kind) in a.iter_mut().zip(shape.chars()) {
            *argument = held.argument(kind);
        }
        if let Some(stream) = ends_capture {
            a[0] = stream;
        }
        // SAFETY: out-pointers are null or point to 64 words; host ranges are as long as any copy
        // that the device's capacity lets through; everything else is for the simulator to check.
        let code = unsafe {
            functions[which](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10])
        };
        *codes.entry((which, code)).or_default() += 1;
        assert_ne!(code, 999, "{name:?}{a:x?} seed {seed}: the simulator panicked");
        if code == 0 && name == c"cuStreamBeginCapture_v2" {
            capturing = Some(a[0]);
        }
        if code == 0 && shape.contains('o') && held.out[0] != 0 {
            let value = held.out[0];
            held.keep(value);
        }
    }
    let _ = universe.finish().to_string();
    std::mem::forget(zero); // its context may have ended
    // Findings are expected, and any: reading them keeps the drop from a panic.
    for universe in [&universe, &foreign] {
        let _ = universe.reports();
    }
}

#[test]
fn any_call_with_any_arguments_returns() {
    let mut codes = BTreeMap::new();
    for seed in 0..200 {
        for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
            run(seed, policy, 2000, &mut codes);
        }
    }
    // Some arguments pass the first check, and some fail it.
    let simulated = CALLS.len() - 1;
    for (which, (name, shape)) in CALLS[..simulated].iter().enumerate() {
        let returned = |code| codes.get(&(which, code)).copied().unwrap_or(0);
        let all: u32 = codes.range((which, 0)..(which + 1, 0)).map(|(_, count)| count).sum();
        assert!(returned(0) > 0, "{name:?} never succeeded");
        assert!(returned(0) < all || !shape.contains(['o', 'a']), "{name:?} never failed");
    }
}
