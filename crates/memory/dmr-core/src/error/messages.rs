//! The advice in the message of a driver error, and tests that each error message has advice.

/// Returns the advice for a `CUresult` after which the device is still usable. The call has changed
/// nothing, so it can be repeated.
pub(super) fn advice(code: i32) -> &'static str {
    match code {
        2 => "free memory of the device or of the host, then retry",
        4 => "the driver shuts down at the end of the process: free GPU memory before that",
        400 => {
            "a stream or event was destroyed: call `retire_stream` before an adopted stream is \
             destroyed"
        }
        900..=908 => "end the capture of the graph that does not allow this call, then retry",
        _ => "retry; if it fails again, look the code up in the documentation of the CUDA driver",
    }
}

/// Returns the end of the message about a lost device: the finding of the simulated driver, if it
/// has one.
pub(super) fn of_finding(finding: Option<&str>) -> String {
    finding.map_or_else(String::new, |finding| {
        format!("\nthe finding of the simulated driver: {finding}")
    })
}

/// Returns the advice for a use of a block on a stream of another stream pool.
pub(super) fn other_pool(block_device: usize, stream_device: usize) -> &'static str {
    if block_device == stream_device {
        "it belongs to another stream pool of the device; use a stream of its own pool, or copy it with \
         `copy_from_peer`"
    } else {
        "copy it with `copy_from_peer`, or use a stream of its own device"
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use crate::error::{
        AddressProblem, Corruption, CorruptionKind, Holder, Limit, PeerProblem, ProcessHolder,
        SharedShortage, SizeProblem, StreamProblem,
    };
    use crate::{Access, AllocTag, Generation, ResourceError, StreamId, Usage};

    /// Returns the subject of an error and its advice, both as in its message. A new variant does
    /// not compile without.
    fn expected(error: &ResourceError) -> (&'static str, &'static str) {
        use ResourceError as E;
        match error {
            E::InvalidSize { .. } => ("cannot allocate 7 bytes", ": request at least one byte"),
            E::OutOfMemory { .. } => {
                ("on device 3", ": free blocks, call reap_pending, or request less")
            }
            E::OutOfBudget { .. } => ("budget \"rows\"", ": call reap_pending or raise the limit"),
            E::Driver { .. } => ("cuMemAlloc failed on device 3", "; retry"),
            E::StreamMisuse { .. } => ("stream", "; create a stream"),
            E::Capacity { .. } => ("all 32 streams", ": return one, or configure more"),
            E::WindowConflict { .. } => ("block", ": finish or cancel that use first"),
            E::StreamCapturing { .. } => {
                ("is capturing a graph", ": end the capture first, or use another stream")
            }
            E::UseAfterFree { .. } => ("block", ": keep the block until its last use"),
            E::OutOfBounds { .. } => ("has 10 bytes", ": use a range inside of the block"),
            E::ForeignBlock { .. } => {
                ("of device 4", ": pass it to the resource that allocated it")
            }
            E::HostMemory { .. } => ("is host memory", ": pinned memory is pooled already"),
            E::PartOfBlock { .. } => {
                ("this is a part of block", ": restore the whole, then deallocate or grow that")
            }
            E::NotGivenAway { .. } => ("the pool cannot give block", ": copy it to a buffer"),
            E::WrongMemory { .. } => ("returned block #9 instead of block #7", ": correct that"),
            E::Library { .. } => ("RMM failed to allocate on device 3: bad", "; correct what RMM"),
            E::ForeignMemory { .. } => {
                ("of device 4", ": use them with the resource that created them")
            }
            E::StillMapped { .. } => ("at 2 addresses", ": unmap them first"),
            E::NoVirtualMemory { .. } => {
                ("of device 3", ": use one whose `virtual_memory` returns")
            }
            E::OtherPool { .. } => {
                ("of device 4 cannot use block", ": copy it with `copy_from_peer`")
            }
            E::NoPeerAccess { .. } => {
                ("device 3 cannot access the memory of device 4", "; copy with `copy_from_peer`")
            }
            E::NotAdopted { .. } => {
                ("7 bytes at 0x700 cannot be adopted on device 3", "; pass a device address")
            }
            E::Corrupted(_) => ("tag \"rows\"", "; to find the kernel, run compute-sanitizer"),
            E::DeviceLost { .. } => ("device 3 is lost", "; restart the process"),
            E::ForkedProcess { .. } => ("device 3", ": start the child as a new process"),
        }
    }

    fn errors() -> Vec<ResourceError> {
        use ResourceError as E;
        let stream = StreamId::DEFAULT;
        let tag = AllocTag::new("rows");
        let generation = Generation::next();
        let corruption = Corruption {
            kind: CorruptionKind::Overrun,
            generation,
            tag,
            bytes: 10,
            alloc_stream: stream,
            offset: 10,
            allocated_at: None,
        };
        vec![
            E::InvalidSize { requested: 7, problem: SizeProblem::Zero },
            E::out_of_memory(7, 3, (1, 2), &Usage::default()),
            E::out_of_budget(tag, 7, 10, 5, 5, Vec::new()),
            E::driver("cuMemAlloc", 1, "CUDA_ERROR_INVALID_VALUE", 3),
            E::stream_misuse(stream, StreamProblem::PerThreadDefault),
            E::capacity("streams", 32),
            E::window_conflict(generation, stream, stream, Access::Read),
            E::stream_capturing(stream),
            E::use_after_free(generation),
            E::OutOfBounds { generation, offset: 4, len: 8, bytes: 10 },
            E::ForeignBlock { generation, block_device: 4, device_ordinal: 3 },
            E::HostMemory { generation },
            E::PartOfBlock { generation, ptr: 0x700, bytes: 10 },
            E::NotGivenAway { generation, resource: "the pool" },
            E::wrong_memory("deallocate", "block #9", "block #7"),
            E::library("RMM", "allocate", "bad".into(), 3),
            E::ForeignMemory { bytes: 10, memory_device: 4, device_ordinal: 3 },
            E::StillMapped { bytes: 10, mappings: 2 },
            E::no_virtual_memory(3),
            E::OtherPool { generation, block_device: 3, stream, stream_device: 4 },
            E::no_peer_access(3, 4, PeerProblem::NoPath),
            E::not_adopted(0x700, 7, 3, AddressProblem::unknown(0)),
            E::Corrupted(Box::new(corruption)),
            E::device_lost(3, "cuEventQuery", 700),
            E::forked_process(3),
        ]
    }

    #[test]
    fn each_message_says_what_happened_to_what_and_what_to_do() {
        let errors = errors();
        for error in &errors {
            let message = error.to_string();
            let (about, advice) = expected(error);
            assert!(message.contains(about), "{message}: not {about:?}");
            assert!(message.contains(advice), "{message}: not {advice:?}");
        }
        let variants: HashSet<_> = errors.iter().map(discriminant).collect();
        assert_eq!(variants.len(), 25, "an error of each variant");
    }

    #[test]
    fn a_driver_error_gives_the_advice_for_its_code() {
        for (code, advice) in [
            (2, "; free memory of the device or of the host"),
            (4, "; the driver shuts down at the end of the process"),
            (400, "; a stream or event was destroyed: call `retire_stream`"),
            (900, "; end the capture of the graph"),
            (908, "; end the capture of the graph"),
            (999, "; retry; if it fails again, look the code up"),
        ] {
            let message = ResourceError::driver("cuStreamCreate", code, "NAME", 3).to_string();
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn each_problem_of_a_size_or_a_stream_says_what_to_do() {
        for (problem, advice) in [
            (SizeProblem::Zero, "request at least one byte"),
            (SizeProblem::Overflow, "request less"),
            (SizeProblem::BeyondDevice { device_bytes: 9 }, "request less"),
            (SizeProblem::NotGranular { granularity: 4 }, "round the size up"),
            (SizeProblem::AdoptsOnly, "copy it into a buffer of the runtime"),
        ] {
            assert!(problem.to_string().contains(advice), "{problem}");
        }
        let unsupported = PeerProblem::NotSupported.to_string();
        assert!(unsupported.contains("; use a resource that implements"), "{unsupported}");
        let same = super::other_pool(3, 3);
        assert!(same.contains("; use a stream of its own pool"), "{same}");
        use StreamProblem as P;
        for (problem, advice) in [
            (P::OtherPool, "; use a stream of the pool"),
            (P::OtherDevice { stream_device: 3, device: 4 }, "; use a stream of device 4"),
            (P::ReturnedLease, "; acquire a stream"),
            (P::OtherContext, "; use a stream of the context"),
            (P::PerThreadDefault, "; create a stream"),
            (P::LegacyDefault, "; adopt it by name"),
            (P::OwnedByPool, "; use the id of its lease"),
            (P::AlreadyAdopted, "; use the id of that lease"),
            (P::NotAdopted, "; only adopted streams are retired"),
            (P::OpenWindow { block: 7 }, "; finish or cancel that launch"),
            (P::InCall, "; retire the stream when the call has returned"),
            (P::NotTracked, "; use the backend"),
        ] {
            assert!(problem.to_string().contains(advice), "{problem}");
        }
    }

    #[test]
    fn an_out_of_budget_message_names_the_holders_and_says_what_to_do() {
        let holder = |name, bytes, blocks| Holder { tag: AllocTag::new(name), bytes, blocks };
        let error = ResourceError::out_of_budget(
            AllocTag::UNTAGGED,
            2_254_857_830,
            8 << 30,
            1_503_238_553,
            1_288_490_188,
            vec![holder("hash-table", 5 << 30, 312), holder("", 1 << 20, 1)],
        );
        assert_eq!(
            error.to_string(),
            "out of budget: 2.1 GiB requested, 1.4 GiB of 8 GiB left; 5 GiB held by \"hash-table\" \
             (312 blocks), 1 MiB held by \"untagged\" (1 blocks), 1.2 GiB pending: call \
             reap_pending or raise the limit"
        );
        let process = |pid, name: &str, bytes, tag: &str, tag_bytes| ProcessHolder {
            pid,
            name: name.into(),
            bytes,
            tag: tag.into(),
            tag_bytes,
        };
        let error = ResourceError::out_of_budget(AllocTag::UNTAGGED, 7, 8 << 30, 6, 0, Vec::new());
        let processes =
            [process(42, "python3", 6 << 30, "kv-cache", 5 << 30), process(7, "tests", 1, "", 0)];
        let shared = SharedShortage { processes: processes.into(), problem: None };
        assert_eq!(
            error.clone().shared_by(shared).to_string(),
            "out of budget: 7 B requested, 6 B of 8 GiB left; shared by processes: 6 GiB held by process 42 \
             (python3), most of it by \"kv-cache\" (5 GiB); 1 B held by process 7 (tests); idle memory of \
             their pools counts: call trim_to there, 0 B pending: call reap_pending or raise the limit"
        );
        let problem = Some("locked for 5s".into());
        let error = error.shared_by(SharedShortage { problem, ..SharedShortage::default() });
        let expected = "6 B of 8 GiB left; the limit is shared by processes and cannot be used: locked for 5s, 0 B";
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn an_out_of_memory_message_names_the_limit_that_refused_and_what_to_do() {
        let usage = Usage { live: 2 << 20, ..Usage::default() };
        let error = ResourceError::out_of_memory(100 << 20, 0, (16 << 30, 16 << 30), &usage);
        assert_eq!(
            error.to_string(),
            "out of device memory: 100 MiB requested, 16 GiB of 16 GiB free on device 0; this resource \
             holds 2 MiB live and 0 B retired: free blocks, call reap_pending, or request less"
        );
        let limit = Limit { name: "PoolConfig::maximum_size", bytes: 64 << 20, reserved: 32 << 20 };
        assert_eq!(
            error.by_limit(limit).to_string(),
            "out of memory: 100 MiB requested, and PoolConfig::maximum_size allows 64 MiB, of which \
             32 MiB are reserved (device 0 has 16 GiB of 16 GiB free); this resource holds 2 MiB \
             live and 0 B retired: free blocks, call reap_pending, request less, or raise \
             PoolConfig::maximum_size"
        );
    }
}
