//! Several host threads at once, on streams of their own and on each other's blocks.

use std::sync::mpsc;
use std::thread;

use dmr_buffer::DeviceBuffer;
use dmr_sanitize::Outcome;

use crate::stage::Stage;
use crate::{SIZES, Test};

pub(crate) const TESTS: &[Test] = &[
    ("threads_on_streams_of_their_own_allocate_launch_and_free_at_once", own_streams),
    ("threads_free_what_other_threads_have_allocated", handed_over),
];

fn own_streams(stage: &Stage) -> Outcome {
    const THREADS: u8 = 8;
    thread::scope(|scope| {
        let run = |number: u8| -> Outcome {
            let stream = stage.rig.stream();
            for round in 0..4_u8 {
                for &len in SIZES {
                    let source = vec![number; len];
                    let source = DeviceBuffer::from_host(&stage.ctx, &stream, &source)?;
                    let mut target = DeviceBuffer::<u8>::uninit(&stage.ctx, &stream, len)?;
                    stage.add(&stream, &source, &mut target, round)?;
                    drop(source);
                    assert_eq!(target.to_host(&stream)?, vec![number + round; len]);
                }
            }
            Ok(())
        };
        let running: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || run(number))).collect();
        running.into_iter().try_for_each(|it| it.join().expect("a thread that did not panic"))
    })
}

fn handed_over(stage: &Stage) -> Outcome {
    const BLOCKS: usize = 64;
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    let (sender, receiver) = mpsc::channel::<DeviceBuffer<u8>>();
    thread::scope(|scope| {
        let producer = scope.spawn(|| -> Outcome {
            let sender = sender;
            for number in 0..BLOCKS {
                let len = SIZES[number % SIZES.len()];
                let made = DeviceBuffer::from_host(&stage.ctx, &a, &vec![number as u8; len])?;
                sender.send(made)?;
            }
            Ok(())
        });
        for (number, received) in receiver.iter().enumerate() {
            let mut target = DeviceBuffer::<u8>::uninit(&stage.ctx, &b, received.len())?;
            stage.add(&b, &received, &mut target, 1)?;
            let expected = vec![number as u8 + 1; received.len()];
            drop(received);
            assert_eq!(target.to_host(&b)?, expected);
        }
        producer.join().expect("a thread that did not panic")
    })
}
