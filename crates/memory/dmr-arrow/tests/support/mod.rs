//! Another library, for the tests: it makes and reads the structs, with definitions of its own.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaStream, result};
use dmr_arrow::{ArrowDeviceArray, ArrowSchema};
use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_streams::{Device, DeviceContext, StreamPool};
use dmr_testkit::Rig;

pub(crate) mod consumer;

/// `struct ArrowSchema`, as another library has it.
#[repr(C)]
pub(crate) struct Schema {
    pub(crate) format: *const c_char,
    pub(crate) name: *const c_char,
    pub(crate) metadata: *const c_char,
    pub(crate) flags: i64,
    pub(crate) n_children: i64,
    pub(crate) children: *mut *mut Schema,
    pub(crate) dictionary: *mut Schema,
    pub(crate) release: Option<unsafe extern "C" fn(*mut Schema)>,
    pub(crate) private_data: *mut c_void,
}

/// `struct ArrowArray`, as another library has it.
#[repr(C)]
pub(crate) struct Array {
    pub(crate) length: i64,
    pub(crate) null_count: i64,
    pub(crate) offset: i64,
    pub(crate) n_buffers: i64,
    pub(crate) n_children: i64,
    pub(crate) buffers: *mut *const c_void,
    pub(crate) children: *mut *mut Array,
    pub(crate) dictionary: *mut Array,
    pub(crate) release: Option<unsafe extern "C" fn(*mut Array)>,
    pub(crate) private_data: *mut c_void,
}

/// `struct ArrowDeviceArray`, as another library has it.
#[repr(C)]
pub(crate) struct DeviceArray {
    pub(crate) array: Array,
    pub(crate) device_id: i64,
    pub(crate) device_type: i32,
    pub(crate) sync_event: *mut c_void,
    pub(crate) reserved: [i64; 3],
}

/// A column in host memory: what the buffers of both sides must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Spec {
    pub(crate) format: String,
    pub(crate) name: String,
    pub(crate) flags: i64,
    pub(crate) metadata: Vec<u8>,
    pub(crate) length: usize,
    pub(crate) offset: usize,
    pub(crate) null_count: i64,
    /// Without the sizes of the data of binary views.
    pub(crate) buffers: Vec<Option<Vec<u8>>>,
    pub(crate) children: Vec<Spec>,
    pub(crate) dictionary: Option<Box<Spec>>,
}

impl Spec {
    pub(crate) fn is_view(&self) -> bool {
        matches!(&*self.format, "vz" | "vu")
    }

    pub(crate) fn sizes(&self) -> Vec<i64> {
        let sizes = self.buffers.iter().skip(2);
        sizes.map(|it| it.as_ref().map_or(0, |bytes| bytes.len() as i64)).collect()
    }
}

/// A context over the driver's pool.
pub(crate) struct Gpu {
    streams: Arc<StreamPool>,
    resource: Arc<dyn DeviceMemoryResource>,
}

impl Gpu {
    pub(crate) fn new(rig: &Rig) -> Self {
        let streams = Arc::clone(rig.streams());
        let resource = Arc::new(
            AsyncCudaResource::new(Arc::clone(&streams), AsyncConfig::default())
                .expect("a resource"),
        );
        Self { streams, resource }
    }
}

impl DeviceContext for Gpu {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// Counts the releases of a library's structs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Releases {
    pub(crate) arrays: Arc<AtomicUsize>,
    pub(crate) schemas: Arc<AtomicUsize>,
}

impl Releases {
    pub(crate) fn arrays(&self) -> usize {
        self.arrays.load(Ordering::SeqCst)
    }

    pub(crate) fn schemas(&self) -> usize {
        self.schemas.load(Ordering::SeqCst)
    }

    /// Waits until this many arrays were released, and a moment longer.
    pub(crate) fn wait_for(&self, count: usize) {
        let start = Instant::now();
        while self.arrays() < count {
            assert!(start.elapsed() < Duration::from_secs(20), "{} of {count}", self.arrays());
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(self.arrays(), count);
    }
}

/// Another library, which makes columns on a stream of its own.
pub(crate) struct Producer {
    device: Device,
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) releases: Releases,
    /// `true` if the sizes of the data of views are in host memory.
    pub(crate) sizes_on_host: bool,
}

/// The data of a schema of the library.
struct KeptSchema {
    _texts: [CString; 2],
    _metadata: Vec<u8>,
    children: Vec<*mut Schema>,
    releases: Releases,
}

/// The data of an array of the library. The driver's memory is freed with it.
struct KeptArray {
    buffers: Vec<*const c_void>,
    children: Vec<*mut Array>,
    allocations: Vec<u64>,
    _host: Vec<i64>,
    device: Device,
    event: Option<(CudaEvent, Box<*mut c_void>)>,
    releases: Releases,
    is_root: bool,
}

impl Producer {
    pub(crate) fn new(rig: &Rig) -> Self {
        let device = rig.device().clone();
        let stream = device.context().new_stream().expect("a stream");
        Self { device, stream, releases: Releases::default(), sizes_on_host: false }
    }

    /// Makes the structs of a column. Their event was recorded behind the copies, on the stream of
    /// the library.
    pub(crate) fn make(&self, spec: &Spec) -> (DeviceArray, Schema) {
        let array = self.array(spec);
        let event = self.stream.record_event(None).expect("an event");
        let handle = Box::new(event.cu_event().cast());
        let sync_event: *const *mut c_void = &raw const *handle;
        // SAFETY: made by `array`.
        let kept = unsafe { &mut *array.private_data.cast::<KeptArray>() };
        kept.event = Some((event, handle));
        kept.is_root = true;
        let array = DeviceArray {
            array,
            device_id: self.device.ordinal() as i64,
            device_type: 2,
            sync_event: sync_event.cast_mut().cast(),
            reserved: [0; 3],
        };
        (array, self.schema(spec))
    }

    fn array(&self, spec: &Spec) -> Array {
        self.device.bind().expect("the context");
        let mut allocations = Vec::new();
        let mut upload = |bytes: &[u8]| {
            if bytes.is_empty() {
                return ptr::null();
            }
            // SAFETY: the context is current; the memory has the bytes, which are copied before
            // this returns or by the stream from a copy of them.
            let at = unsafe {
                let at = result::malloc_sync(bytes.len()).expect("memory");
                result::memcpy_htod_async(at, bytes, self.stream.cu_stream()).expect("a copy");
                at
            };
            allocations.push(at);
            ptr::with_exposed_provenance::<c_void>(at as usize)
        };
        let mut buffers: Vec<*const c_void> = spec
            .buffers
            .iter()
            .map(|it| it.as_ref().map_or(ptr::null(), |bytes| upload(bytes)))
            .collect();
        let mut host = spec.sizes();
        if spec.is_view() {
            host.push(0);
            let bytes: Vec<u8> = host.iter().flat_map(|it| it.to_ne_bytes()).collect();
            buffers.push(match self.sizes_on_host {
                true => {
                    host.as_ptr().expose_provenance();
                    host.as_ptr().cast()
                }
                false => upload(&bytes),
            });
        }
        let boxed = |spec: &Spec| Box::into_raw(Box::new(self.array(spec)));
        let children = spec.children.iter().map(boxed).collect();
        let dictionary = spec.dictionary.as_deref().map_or(ptr::null_mut(), boxed);
        let mut kept = Box::new(KeptArray {
            buffers,
            children,
            allocations,
            _host: host,
            device: self.device.clone(),
            event: None,
            releases: self.releases.clone(),
            is_root: false,
        });
        Array {
            length: spec.length as i64,
            null_count: spec.null_count,
            offset: spec.offset as i64,
            n_buffers: kept.buffers.len() as i64,
            n_children: kept.children.len() as i64,
            buffers: kept.buffers.as_mut_ptr(),
            children: kept.children.as_mut_ptr(),
            dictionary,
            release: Some(release_array),
            private_data: Box::into_raw(kept).cast(),
        }
    }

    fn schema(&self, spec: &Spec) -> Schema {
        let boxed = |spec: &Spec| Box::into_raw(Box::new(self.schema(spec)));
        let format = CString::new(&*spec.format).expect("a text");
        let name = CString::new(&*spec.name).expect("a text");
        let mut kept = Box::new(KeptSchema {
            children: spec.children.iter().map(boxed).collect(),
            _metadata: spec.metadata.clone(),
            _texts: [format, name],
            releases: self.releases.clone(),
        });
        Schema {
            format: kept._texts[0].as_ptr(),
            name: kept._texts[1].as_ptr(),
            metadata: match spec.metadata.is_empty() {
                true => ptr::null(),
                false => kept._metadata.as_ptr().cast(),
            },
            flags: spec.flags,
            n_children: kept.children.len() as i64,
            children: kept.children.as_mut_ptr(),
            dictionary: spec.dictionary.as_deref().map_or(ptr::null_mut(), boxed),
            release: Some(release_schema),
            private_data: Box::into_raw(kept).cast(),
        }
    }
}

unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: made by `Producer`, and not released.
    unsafe {
        let array = &mut *array;
        assert!(array.release.take().is_some(), "released twice");
        let kept = Box::from_raw(array.private_data.cast::<KeptArray>());
        let dictionary = Some(array.dictionary).filter(|it| !it.is_null());
        for below in kept.children.iter().copied().chain(dictionary) {
            let mut below = Box::from_raw(below);
            if let Some(release) = below.release {
                release(&mut *below);
            }
        }
        let bind = || kept.device.bind();
        if bind().or_else(|_| bind()).is_ok() {
            for allocation in &kept.allocations {
                // A test may make one call fail; on a lost device all do.
                let _ = result::free_sync(*allocation).or_else(|_| result::free_sync(*allocation));
            }
        }
        if kept.is_root {
            kept.releases.arrays.fetch_add(1, Ordering::SeqCst);
        }
    }
}

unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: made by `Producer`, and not released.
    unsafe {
        let schema = &mut *schema;
        assert!(schema.release.take().is_some(), "released twice");
        let kept = Box::from_raw(schema.private_data.cast::<KeptSchema>());
        let dictionary = Some(schema.dictionary).filter(|it| !it.is_null());
        for below in kept.children.iter().copied().chain(dictionary) {
            let mut below = Box::from_raw(below);
            if let Some(release) = below.release {
                release(&mut *below);
            }
        }
        kept.releases.schemas.fetch_add(1, Ordering::SeqCst);
    }
}

/// Passes the structs of a library to the crate.
pub(crate) fn taken(
    array: &mut DeviceArray,
    schema: &mut Schema,
) -> (ArrowDeviceArray, ArrowSchema) {
    // SAFETY: the layouts are the same, and the structs keep the protocol.
    unsafe {
        (
            ArrowDeviceArray::take(ptr::from_mut(array).cast()),
            ArrowSchema::take(ptr::from_mut(schema).cast()),
        )
    }
}
