//! D8: futures of the device under tokio, on one thread and on several: joined, selected, timed
//! out, and dropped with their executor.

#![cfg(feature = "async")]

use std::sync::Arc;
use std::time::Duration;

use dmr::prelude::*;
use dmr_testkit::{HeldStream, Rig};
use tokio::runtime::{Builder, Runtime};

const LEN: usize = 1000;
const SOON: Duration = Duration::from_millis(2);

fn executors() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.worker_threads(2).enable_time().build().unwrap())
}

fn gpu(rig: &Rig) -> Arc<DeviceRuntime> {
    let builder = DeviceRuntime::builder(rig.ordinal()).with_streams(Arc::clone(rig.streams()));
    Arc::new(builder.backend(Backend::Async).build().unwrap())
}

#[test]
fn tasks_on_their_own_streams_read_their_own_elements() {
    for executor in executors() {
        let rig = Rig::new();
        let gpu = gpu(&rig);
        executor.block_on(async {
            let tasks: Vec<_> = (0..24u32)
                .map(|value| {
                    let gpu = Arc::clone(&gpu);
                    tokio::spawn(async move {
                        let stream = gpu.streams().acquire().unwrap();
                        let mut buffer = DeviceBuffer::<u32>::zeroed(&gpu, &stream, LEN).unwrap();
                        for round in 0..5 {
                            buffer.fill(value + round, &stream).unwrap();
                            let host = buffer.to_host_async(&stream).await.unwrap();
                            assert_eq!(host[..], [value + round; LEN]);
                            gpu.streams().completed(&stream).await.unwrap();
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        reap_pinned(&gpu).unwrap();
        drop((executor, gpu));
        rig.assert_clean();
    }
}

#[test]
fn a_timeout_gives_a_wait_up_and_a_later_one_ends() {
    for executor in executors() {
        let rig = Rig::new();
        let gpu = gpu(&rig);
        let stream = gpu.streams().acquire().unwrap();
        let mut buffer = DeviceBuffer::<u8>::zeroed(&gpu, &stream, LEN).unwrap();
        let held = HeldStream::hold(gpu.streams(), &stream);
        buffer.fill(7, &stream).unwrap();
        executor.block_on(async {
            for _ in 0..3 {
                let waited = gpu.streams().completed(&stream);
                assert!(tokio::time::timeout(SOON, waited).await.is_err());
                assert!(tokio::time::timeout(SOON, buffer.to_host_async(&stream)).await.is_err());
            }
            let copy = tokio::spawn(buffer.to_host_async(&stream));
            tokio::time::sleep(SOON).await;
            assert!(!copy.is_finished());
            held.release();
            assert_eq!(copy.await.unwrap().unwrap()[..], [7; LEN]);
        });
        drop((held, buffer, stream));
        reap_pinned(&gpu).unwrap();
        drop((executor, gpu));
        rig.assert_clean();
    }
}

#[test]
fn an_executor_that_ends_takes_its_waiting_tasks_along() {
    for executor in executors() {
        let rig = Rig::new();
        let gpu = gpu(&rig);
        let stream = gpu.streams().acquire().unwrap();
        let held = HeldStream::hold(gpu.streams(), &stream);
        for _ in 0..50 {
            executor.spawn(gpu.streams().completed(&stream));
        }
        executor.block_on(async { tokio::time::sleep(SOON).await });
        executor.shutdown_background();
        held.release();
        executors()[0].block_on(gpu.streams().completed(&stream)).unwrap();
        drop((held, stream, gpu));
        rig.assert_clean();
    }
}
