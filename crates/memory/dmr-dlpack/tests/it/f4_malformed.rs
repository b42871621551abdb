//! F4: a malformed tensor is refused with the name of its field, and stays its caller's.
//!
//! `DMR_DLPACK_TENSORS` sets the number of random tensors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlpark::ManagedTensorBase;
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDeviceType, DLManagedTensorVersioned, DLTensor};
use dmr_core::AllocTag;
use dmr_dlpack::{ImportError, dlpark, import};
use dmr_external::Ready;
use dmr_testkit::{Rig, SplitMix64};

use crate::support::{context, tensor, wait_for};

const TAG: AllocTag = AllocTag::new("tensor");
const DEFAULT_TENSORS: u64 = 20_000;

type Damage = fn(&mut DLManagedTensorVersioned);

fn of_tensor(tensor: &mut DLManagedTensorVersioned) -> &mut DLTensor {
    tensor.tensor_mut()
}

#[test]
fn the_error_names_the_field_and_nothing_is_deleted() {
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let stream = Arc::clone(home.stream());
    let deletions = Arc::<AtomicUsize>::default();
    let damages: &[(&str, Damage)] = &[
        ("version.major", |it| it.version.major = 2),
        ("version.major", |it| {
            it.version.major = 0;
            of_tensor(it).ndim = i32::MAX;
            of_tensor(it).shape = std::ptr::dangling_mut();
        }),
        ("device.device_type", |it| of_tensor(it).device.device_type = DLDeviceType::CPU),
        ("device.device_type", |it| of_tensor(it).device.device_type = DLDeviceType(77)),
        ("device.device_id", |it| of_tensor(it).device.device_id = 99),
        ("device.device_id", |it| of_tensor(it).device.device_id = -1),
        ("ndim", |it| of_tensor(it).ndim = -1),
        ("ndim", |it| of_tensor(it).ndim = i32::MAX),
        ("shape", |it| of_tensor(it).shape = std::ptr::null_mut()),
        // SAFETY: the shape has two sizes.
        ("shape", |it| unsafe { *of_tensor(it).shape = -4 }),
        // SAFETY: as above.
        ("shape", |it| unsafe { *of_tensor(it).shape = i64::MAX }),
        // SAFETY: there are two strides.
        ("strides", |it| unsafe { *of_tensor(it).strides = i64::MAX }),
        // SAFETY: as above.
        ("strides", |it| unsafe { *of_tensor(it).strides = i64::MIN }),
        ("dtype.code", |it| of_tensor(it).dtype.code = DLDataTypeCode(200)),
        ("dtype.bits", |it| of_tensor(it).dtype.bits = 0),
        ("dtype.bits", |it| of_tensor(it).dtype.bits = 4),
        ("dtype.lanes", |it| of_tensor(it).dtype.lanes = 0),
        ("data", |it| of_tensor(it).data = std::ptr::null_mut()),
        ("byte_offset", |it| of_tensor(it).byte_offset = u64::MAX),
        // Beyond the allocation, in the address space.
        ("adopted", |it| of_tensor(it).byte_offset = 1 << 40),
    ];
    for (field, damage) in damages {
        let made = tensor::<DLManagedTensorVersioned>(
            Some(stream.alloc_zeros::<u8>(24).unwrap()),
            &stream,
            rig.ordinal(),
            DLDataType::I32,
            &[2, 3],
            &[3, 1],
            &deletions,
        );
        // SAFETY: just made.
        damage(unsafe { &mut *made });
        let before = deletions.load(Ordering::SeqCst);
        // SAFETY: what can be read is there.
        let refused = unsafe { import(&context, &home, made, Ready::Done, TAG) }.unwrap_err();
        assert!(refused.to_string().contains(field), "{field}: {refused}");
        if let ImportError::Field { field: found, .. } = refused {
            assert_eq!(found, *field);
        }
        assert_eq!(deletions.load(Ordering::SeqCst), before, "it is the caller's");
        // SAFETY: it was not consumed. The fields that its deleter needs are as they were.
        unsafe { DLManagedTensorVersioned::drop_raw(made) };
    }
    wait_for(&deletions, damages.len());
    // SAFETY: null is refused.
    let null = unsafe {
        import::<_, DLManagedTensorVersioned>(
            &context,
            &home,
            std::ptr::null_mut(),
            Ready::Done,
            TAG,
        )
    };
    assert!(null.unwrap_err().to_string().contains("tensor"));
    drop((home, context, stream));
    rig.assert_clean();
}

/// Random values of the fields, most of them near what is allowed.
fn random_number(random: &mut SplitMix64) -> i64 {
    match random.next_u64() % 8 {
        0 => i64::MAX,
        1 => i64::MIN,
        2 => random.next_u64() as i64,
        3 => -((random.next_u64() % 9) as i64),
        _ => (random.next_u64() % 9) as i64,
    }
}

#[test]
fn random_tensors_are_imported_or_refused_in_bounded_memory() {
    let tensors = std::env::var("DMR_DLPACK_TENSORS")
        .map_or(DEFAULT_TENSORS, |number| number.parse().expect("DMR_DLPACK_TENSORS is a number"));
    let rig = Rig::new();
    let context = context(&rig);
    let home = rig.stream();
    let stream = Arc::clone(home.stream());
    let allocation = stream.alloc_zeros::<u8>(1 << 16).unwrap();
    let data = cudarc::driver::DevicePtr::device_ptr(&allocation, &stream).0;
    let deletions = Arc::<AtomicUsize>::default();
    let mut random = SplitMix64::new(31);
    let mut imported = 0;
    let resident = resident_bytes();
    for _ in 0..tensors {
        let ndim = (random.next_u64() % 5) as usize;
        let shape: Vec<i64> = (0..ndim).map(|_| random_number(&mut random)).collect();
        let strides: Vec<i64> = (0..ndim).map(|_| random_number(&mut random)).collect();
        let dtype = DLDataType {
            code: DLDataTypeCode((random.next_u64() % 20) as u8),
            bits: [8, 16, 32, 64, 32, 8, 4, 0][(random.next_u64() % 8) as usize],
            lanes: [1, 1, 1, 1, 1, 2, 4, 0][(random.next_u64() % 8) as usize],
        };
        let ordinal = rig.ordinal();
        let made = tensor::<DLManagedTensorVersioned>(
            None, &stream, ordinal, dtype, &shape, &strides, &deletions,
        );
        // SAFETY: just made.
        let managed = unsafe { &mut *made };
        managed.version.minor = random.next_u64() as u32 % 5;
        if random.next_u64().is_multiple_of(16) {
            managed.version.major = random.next_u64() as u32;
        }
        let descriptor = managed.tensor_mut();
        descriptor.data = data as *mut _;
        descriptor.byte_offset = match random.next_u64() % 4 {
            0 => random.next_u64(),
            _ => random.next_u64() % (1 << 15),
        };
        match random.next_u64() % 16 {
            0 => descriptor.ndim = -(descriptor.ndim + 1),
            1 => descriptor.ndim = 65 + (random.next_u64() % (1 << 30)) as i32,
            2 => descriptor.device.device_id = random.next_u64() as i32,
            3 => descriptor.device.device_type = DLDeviceType(random.next_u64() as u32 % 20),
            4 => descriptor.data = random.next_u64() as *mut _,
            5 => descriptor.shape = std::ptr::null_mut(),
            6 => descriptor.strides = std::ptr::null_mut(),
            _ => {}
        }
        // SAFETY: what can be read is there; the work on the stream is that of this thread.
        match unsafe { import(&context, &home, made, Ready::Done, TAG) } {
            Ok(found) => {
                imported += 1;
                drop(found);
            }
            // SAFETY: it was not consumed.
            Err(_) => unsafe { DLManagedTensorVersioned::drop_raw(made) },
        }
    }
    wait_for(&deletions, tensors as usize);
    assert!(imported > tensors / 1000, "{imported} were imported");
    let grown = resident_bytes().saturating_sub(resident);
    assert!(grown < 64 << 20, "{grown} bytes more are resident");
    drop((allocation, home, context, stream));
    rig.assert_clean();
}

/// Returns the memory of this process; 0 where the system does not report it.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
