//! Random programs on every stack: several threads and streams, held calls, faults, captures,
//! retired streams. None shows a race, a wrong byte or lost memory, except for the known failures.

use dmr_programs::generate::{Shape, program};
use dmr_programs::known::classify;
use dmr_programs::player::Options;
use dmr_programs::run::Runner;
use dmr_programs::shrink::shrink;
use dmr_programs::{Conflict, Counts, Failure, Program, Stack};
use dmr_sim::Policy;

/// Programs of each stack and policy.
const EACH: u64 = 400;
/// Programs of a stack with a guard, whose kernels check each byte of each block, and of a policy.
const GUARDED: u64 = 100;
const POLICIES: [Policy; 3] = [Policy::Eager, Policy::Lazy, Policy::Random];

/// Plays programs on a stack, each policy in turn.
fn play(stack: Stack) {
    let mut runner = Runner::new(Options::default());
    let each = if stack == Stack::GuardAsync { GUARDED } else { EACH };
    for (nth, policy) in POLICIES.into_iter().enumerate() {
        let first = 10_000_000 + nth as u64 * EACH;
        for number in first..first + each {
            let program = program(number, stack, policy, Shape::FULL);
            if let Err(failure) = runner.play(&program) {
                assert_known(&program, &failure);
            }
        }
    }
    runner.end().unwrap_or_else(|failure| panic!("{failure}"));
    let counts = &runner.counts;
    assert!(counts.allocated > 5 * each, "{counts}");
    let all = [
        Conflict::ReadAfterWrite,
        Conflict::WriteAfterRead,
        Conflict::WriteAfterTwoReaders,
        Conflict::WriteAfterWrite,
        Conflict::FreeAfterOtherStream,
        Conflict::FreeInWindow,
        Conflict::NestedWindow,
        Conflict::WindowRefused,
        Conflict::PartUsed,
        Conflict::DisjointWindows,
        Conflict::Narrowed,
        Conflict::NarrowedAtOffset,
        Conflict::StreamReplaced,
        Conflict::StreamAdopted,
        Conflict::StreamRetired,
        Conflict::RetiredWithBlocks,
        Conflict::RetireWhileHeld,
        Conflict::RetireInWindow,
        Conflict::RetireUnderCall,
        Conflict::CaptureWhileAllocating,
        Conflict::CaptureWhileReaping,
        Conflict::CaptureGlobal,
        Conflict::StreamCaptured,
        Conflict::CaptureInWindow,
        Conflict::CaptureUnderCall,
        Conflict::CaptureRefused,
        Conflict::PinnedCopied,
        Conflict::PinnedRead,
        Conflict::PinnedRetired,
    ];
    let has_callback = stack == Stack::CallbackPool;
    assert_eq!(counts.of(Conflict::CallbackAllocated) > 0, has_callback, "{counts}");
    // The guard refuses a deallocated block before the stack below gets its stale id.
    let stale = (stack != Stack::GuardAsync).then_some(Conflict::StaleId);
    for conflict in all.into_iter().chain(stale) {
        assert!(counts.of(conflict) > 0, "not reached: {}\n{counts}", conflict.text());
    }
    let used = ["cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"];
    for call in used.iter().chain(memory_calls(stack)) {
        let is_held = counts.held.keys().any(|(held, _)| held == call);
        assert!(is_held, "no thread was held in {call}\n{counts}");
    }
}

/// Driver calls by which a stack takes memory and frees it.
fn memory_calls(stack: Stack) -> &'static [&'static str] {
    match stack {
        Stack::DirectTracked | Stack::PoolDirect | Stack::CallbackPool => {
            &["cuMemAlloc_v2", "cuMemFree_v2"]
        }
        Stack::Async | Stack::PoolAsync | Stack::GuardAsync => {
            &["cuMemAllocFromPoolAsync", "cuMemFreeAsync"]
        }
        _ => &["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"],
    }
}

fn assert_known(program: &Program, failure: &Failure) {
    if classify(program, failure).is_none() {
        let (small, failure) = shrink(program, failure, &Options::default());
        panic!("{failure}\nThe smallest program that shows it:\n{small}");
    }
}

macro_rules! stacks {
    ($($name:ident: $stack:ident;)*) => {
        $(#[test]
        fn $name() {
            play(Stack::$stack);
        })*
    };
}

stacks! {
    programs_are_in_order_on_direct_tracked: DirectTracked;
    programs_are_in_order_on_virtual_tracked: VirtualTracked;
    programs_are_in_order_on_async: Async;
    programs_are_in_order_on_pool_direct: PoolDirect;
    programs_are_in_order_on_pool_async: PoolAsync;
    programs_are_in_order_on_pool_pages: PoolPages;
    programs_are_in_order_on_pool_compact: PoolCompact;
    programs_are_in_order_on_pool_observed: PoolObserved;
    programs_are_in_order_on_budget_pool: BudgetPool;
    programs_are_in_order_on_guard_async: GuardAsync;
    programs_are_in_order_on_log_pool: LogPool;
    programs_are_in_order_on_callback_pool: CallbackPool;
}

#[test]
fn a_forked_child_is_refused_every_call() {
    let mut runner = Runner::new(Options::default());
    for number in 0..110 {
        let stack = Stack::ALL[number as usize % Stack::ALL.len()];
        let program = program(number, stack, Policy::Lazy, Shape::FORKS);
        runner.play(&program).unwrap_or_else(|failure| panic!("{failure}\n{program}"));
    }
    assert!(runner.counts.of(Conflict::Fork) > 80, "{}", runner.counts);
    assert!(runner.counts.of(Conflict::ForkUnderHeldThread) > 60, "{}", runner.counts);
}

#[test]
fn a_program_is_what_its_text_says() {
    for number in 0..500 {
        let stack = Stack::ALL[number as usize % Stack::ALL.len()];
        let shape = if number % 5 == 0 { Shape::FORKS } else { Shape::FULL };
        let program = program(number, stack, Policy::Lazy, shape);
        assert_eq!(program.to_string().parse(), Ok(program));
    }
}

#[test]
fn a_text_that_is_no_program_is_refused_with_its_line() {
    let text = "stack async, work lazy, streams 2, seed 1\nthread 0: free s1";
    let error = text.parse::<Program>().unwrap_err();
    assert!(error.to_string().contains("thread 0: free s1"), "{error}");
}

#[test]
fn a_program_that_is_played_again_reaches_the_same() {
    let mut runner = Runner::new(Options::default());
    let mut clean = 0;
    for number in 0..200 {
        let stack = Stack::ALL[number as usize % Stack::ALL.len()];
        let shape = Shape { threads: false, risks: false, ..Shape::FULL };
        let program = program(number, stack, Policy::Random, shape);
        let first: Result<Counts, Failure> = runner.play_alone(&program);
        clean += usize::from(first.is_ok());
        assert_eq!(runner.play_alone(&program), first, "program {number}");
    }
    assert!(clean > 100, "only {clean} programs do not fail");
}
