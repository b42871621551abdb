//! F6: malformed structs are refused in bounded memory, and released once.
//!
//! `DMR_ARROW_MALFORMED` is their number.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::result;
use dmr_arrow::ArrowColumn;
use dmr_testkit::Rig;
use fastrand::Rng;

use crate::support::{Array, DeviceArray, Gpu, Schema, taken};

/// The system's allocator, which counts.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's obligation.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's obligation.
        unsafe { System.dealloc(ptr, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that the imports may have at a time.
const MOST: usize = 8 << 20;

/// The arrays that were released.
static RELEASED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: made here.
    assert!(unsafe { (*array).release.take() }.is_some(), "released twice");
    RELEASED.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: made here.
    unsafe { (*schema).release = None };
}

/// As many pointers as each list has, at least: those behind its own are null.
const ROOM: usize = 8;

/// One column of a tree whose structs this owns.
struct Node {
    array: Array,
    schema: Schema,
    buffers: [*const c_void; ROOM],
    arrays: [*mut Array; ROOM],
    schemas: [*mut Schema; ROOM],
    format: CString,
    metadata: [i32; 4],
}

/// The types of the columns of the tree, with the number of buffers and the children.
const TREE: &[(&str, usize, &[usize])] = &[
    ("+s", 1, &[1, 2, 3, 5, 6, 8, 11]),
    ("i", 2, &[]),
    ("u", 3, &[]),
    ("+l", 2, &[4]),
    ("d:9,2", 2, &[]),
    ("vu", 4, &[]),
    ("+w:2", 1, &[7]),
    ("b", 2, &[]),
    ("+ud:0,3", 2, &[9, 10]),
    ("n", 0, &[]),
    ("tsu:UTC", 2, &[]),
    ("+r", 0, &[12, 13]),
    ("s", 2, &[]),
    ("s", 2, &[]),
];

const ROWS: i64 = 3;

#[allow(clippy::vec_box, reason = "the structs have the addresses of others")]
fn tree(memory: u64) -> Vec<Box<Node>> {
    let at = ptr::with_exposed_provenance::<c_void>(memory as usize);
    let node = |&(format, n_buffers, children): &(&str, usize, &[usize])| {
        let mut buffers = [ptr::null(); ROOM];
        buffers[..n_buffers].fill(at);
        let array = Array {
            length: 2 * ROWS,
            null_count: 0,
            offset: 0,
            n_buffers: n_buffers as i64,
            n_children: children.len() as i64,
            buffers: ptr::null_mut(),
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release_array),
            private_data: ptr::null_mut(),
        };
        let schema = Schema {
            format: ptr::null(),
            name: c"a".as_ptr(),
            metadata: ptr::null(),
            flags: 0,
            n_children: children.len() as i64,
            children: ptr::null_mut(),
            dictionary: ptr::null_mut(),
            release: Some(release_schema),
            private_data: ptr::null_mut(),
        };
        Box::new(Node {
            array,
            schema,
            buffers,
            arrays: [ptr::null_mut(); ROOM],
            schemas: [ptr::null_mut(); ROOM],
            format: CString::new(format).unwrap(),
            metadata: [0; 4],
        })
    };
    let mut nodes: Vec<Box<Node>> = TREE.iter().map(node).collect();
    for (index, (_, _, children)) in TREE.iter().enumerate() {
        for (nth, child) in children.iter().enumerate() {
            let array = &raw mut nodes[*child].array;
            let schema = &raw mut nodes[*child].schema;
            nodes[index].arrays[nth] = array;
            nodes[index].schemas[nth] = schema;
        }
        let node = &mut *nodes[index];
        node.array.buffers = node.buffers.as_mut_ptr();
        node.array.children = node.arrays.as_mut_ptr();
        node.schema.children = node.schemas.as_mut_ptr();
        node.schema.format = node.format.as_ptr();
    }
    nodes[0].array.length = ROWS;
    nodes[7].array.length = 4 * ROWS;
    let array = &raw mut nodes[2].array;
    let schema = &raw mut nodes[2].schema;
    nodes[13].array.dictionary = array;
    nodes[13].schema.dictionary = schema;
    nodes
}

/// Numbers that a count may have, and none between those that lists have room for and those that
/// are refused for their size.
fn number(rng: &mut Rng) -> i64 {
    const NUMBERS: [i64; 14] = [
        i64::MIN,
        -2,
        -1,
        0,
        1,
        2,
        3,
        4,
        7,
        1 << 20,
        1 << 40,
        i64::MAX / 8,
        i64::MAX - 1,
        i64::MAX,
    ];
    NUMBERS[rng.usize(..NUMBERS.len())]
}

/// Changes one field of a tree, or of its root.
fn change(rng: &mut Rng, nodes: &mut [Box<Node>], root: &mut DeviceArray) {
    let any = rng.usize(..nodes.len());
    let any_array = &raw mut nodes[any].array;
    let any_schema = &raw mut nodes[any].schema;
    let at = rng.usize(..nodes.len());
    let nth = rng.usize(..ROOM);
    let is_root = at == 0;
    let node = &mut *nodes[at];
    // The root is passed by value.
    let array = if is_root { &mut root.array } else { &mut node.array };
    let schema = &mut node.schema;
    match rng.u8(..24) {
        0 => array.length = number(rng),
        1 => array.offset = number(rng),
        2 => array.null_count = number(rng),
        3 => array.n_buffers = number(rng),
        4 => array.n_children = number(rng),
        5 => schema.n_children = number(rng),
        6 => {
            array.n_children = number(rng);
            schema.n_children = array.n_children;
        }
        7 => node.buffers[nth] = ptr::null(),
        // Not the sizes of views, which may be in host memory: those are the caller's word.
        8 => node.buffers[nth % 3] = ptr::without_provenance(usize::MAX - rng.usize(..64)),
        9 => node.buffers[nth % 3] = ptr::without_provenance(rng.usize(1..1 << 12)),
        10 => array.buffers = ptr::null_mut(),
        11 => array.children = ptr::null_mut(),
        12 => schema.children = ptr::null_mut(),
        13 => node.arrays[nth] = [ptr::null_mut(), any_array][rng.usize(..2)],
        14 => node.schemas[nth] = [ptr::null_mut(), any_schema][rng.usize(..2)],
        15 => {
            // Perhaps a cycle.
            node.arrays[nth] = any_array;
            node.schemas[nth] = any_schema;
        }
        16 => array.dictionary = [ptr::null_mut(), any_array][rng.usize(..2)],
        17 => {
            array.dictionary = any_array;
            schema.dictionary = any_schema;
        }
        18 => {
            let length = rng.usize(..6);
            let texts = ["+us:1,2", "+s", "w:7", "d:1,1,256", "tsx:", "+w:2147483647", "Z", "vz"];
            let text: Vec<u8> = match rng.bool() {
                true => texts[rng.usize(..texts.len())].into(),
                false => (0..length).map(|_| rng.u8(1..)).collect(),
            };
            node.format = CString::new(text).unwrap();
            schema.format = node.format.as_ptr();
        }
        19 => schema.format = ptr::null(),
        20 => {
            node.metadata = [1, [-1, 1 << 30, i32::MIN][rng.usize(..3)], 0, 0];
            if rng.bool() {
                node.metadata[0] = -rng.i32(1..);
            }
            schema.metadata = node.metadata.as_ptr().cast();
        }
        21 => {
            if rng.bool() {
                schema.release = None;
            } else if !is_root {
                array.release = None;
            }
        }
        22 => schema.name = c"\xff\xfe".as_ptr(),
        _ => match rng.u8(..4) {
            0 => root.device_id = number(rng),
            1 => root.device_type = rng.i32(-1..20),
            2 => root.reserved[rng.usize(..3)] = number(rng),
            _ => root.sync_event = (&raw mut NO_EVENT).cast(),
        },
    }
}

static mut NO_EVENT: *mut c_void = ptr::null_mut();

#[test]
#[allow(clippy::print_stdout, reason = "the figures of a long run")]
fn malformed_structs_are_refused_in_bounded_memory_and_released_once() {
    let count: usize =
        std::env::var("DMR_ARROW_MALFORMED").ok().and_then(|it| it.parse().ok()).unwrap_or(20_000);
    let rig = Rig::simulated();
    let gpu = Gpu::new(&rig);
    let home = rig.stream();
    rig.device().bind().unwrap();
    // SAFETY: the context is current.
    let memory = unsafe { result::malloc_sync(1 << 16) }.unwrap();
    // SAFETY: it has the bytes.
    unsafe { result::memset_d8_sync(memory, 0, 1 << 16) }.unwrap();
    rig.device().synchronize().unwrap();
    let mut rng = Rng::with_seed(31);
    let mut imported = 0;
    let mut refused = 0;
    let mut highest = 0;
    for round in 0..count {
        let mut nodes = tree(memory);
        // SAFETY: the root is copied: its place is not used any more, but for its lists.
        let array = unsafe { (&raw const nodes[0].array).read() };
        let mut root = DeviceArray {
            array,
            device_id: rig.ordinal() as i64,
            device_type: 2,
            sync_event: ptr::null_mut(),
            reserved: [0; 3],
        };
        let changes = if round == 0 { 0 } else { rng.usize(1..4) };
        for _ in 0..changes {
            change(&mut rng, &mut nodes, &mut root);
        }
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let (array, schema) = taken(&mut root, &mut nodes[0].schema);
        // SAFETY: the pointers are null, or of what the specification says, or are not read.
        match unsafe { ArrowColumn::import(&gpu, home.id(), array, schema) } {
            Ok(column) => {
                imported += 1;
                drop(column);
            }
            Err(error) => {
                refused += 1;
                assert!(round > 0, "{error}");
                drop(error);
            }
        }
        highest = highest.max(PEAK.load(Ordering::Relaxed).saturating_sub(before));
        assert!(highest <= MOST, "{highest} bytes in round {round}");
    }
    let start = Instant::now();
    while RELEASED.load(Ordering::SeqCst) < count {
        let released = RELEASED.load(Ordering::SeqCst);
        assert!(start.elapsed() < Duration::from_secs(20), "{released} of {count}");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(RELEASED.load(Ordering::SeqCst), count);
    println!("{refused} refused, {imported} imported, {highest} bytes at most in an import");
    assert!(refused > count / 2 && imported > 0);
    // SAFETY: allocated above, and not used any more.
    unsafe { result::free_sync(memory) }.unwrap();
    drop((gpu, home));
    rig.assert_clean();
}
