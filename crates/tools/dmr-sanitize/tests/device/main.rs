//! The device tests that run under Compute Sanitizer, on every stack or on the one that `--stack`
//! names. Without a GPU they run on the simulated driver.

mod api_errors;
mod buffers;
mod conformance;
mod graphs;
mod interface;
mod kernels;
mod launches;
mod layers;
mod memory;
mod refusals;
mod scenarios;
mod stage;
mod threads;

use std::env;
use std::process::ExitCode;

use dmr_sanitize::machine::Machine;
use dmr_sanitize::stacks::{STACKS, Stack};
use dmr_sanitize::{Outcome, canary, lines};
use libtest_mimic::{Arguments, Conclusion, Trial};
use stage::Stage;

/// A test on a fresh resource, and its name as a sentence.
type Test = (&'static str, fn(&Stage) -> Outcome);

/// Sizes in bytes or elements: every remainder of a word, and both sides of a kernel's block and of
/// the alignment.
const SIZES: &[usize] = &[1, 2, 3, 5, 63, 255, 256, 257, 1001, 4099, 70_001];

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = env::args().collect();
    if let [_, flag, tool] = &*arguments
        && flag == canary::ARGUMENT
    {
        canary::commit(tool.parse()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    canary::run_if_asked()?;
    let (arguments, stack) = take_stack(arguments)?;
    Ok(run(Arguments::from_iter(arguments), stack)?.exit_code())
}

/// Removes `--stack NAME` from the arguments.
fn take_stack(mut arguments: Vec<String>) -> Outcome<(Vec<String>, Option<Stack>)> {
    let Some(at) = arguments.iter().position(|argument| argument == "--stack") else {
        return Ok((arguments, None));
    };
    let name = arguments.get(at + 1).ok_or("--stack needs a name")?;
    let stack = Stack::find(name)?;
    arguments.drain(at..at + 2);
    Ok((arguments, Some(stack)))
}

fn run(mut arguments: Arguments, stack: Option<Stack>) -> Outcome<Conclusion> {
    let stacks = stack.map_or(STACKS.to_vec(), |stack| vec![stack]);
    let machine = Machine::select()?;
    if !arguments.list {
        lines::backends();
        for stack in &stacks {
            lines::stack(&stack.make(&machine.streams()?)?);
        }
    }
    // Keeps the context: making one for each test would take most of the time.
    let device = machine.universe().is_none().then(|| machine.device()).transpose()?;
    if device.is_some() {
        // One test at a time: a finding then belongs to the test that was printed last.
        arguments.test_threads.get_or_insert(1);
    }
    let mut trials: Vec<_> = stacks.iter().flat_map(|&stack| trials_of(stack)).collect();
    if stack.is_none() && device.is_none() {
        trials.extend(interface::trials());
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(device);
    if !arguments.list {
        api_errors::print();
    }
    Ok(conclusion)
}

fn trials_of(stack: Stack) -> Vec<Trial> {
    let groups = [
        ("buffers", buffers::TESTS),
        ("graphs", graphs::TESTS),
        ("launches", launches::TESTS),
        ("memory", memory::TESTS),
        ("threads", threads::TESTS),
    ];
    let tests =
        groups.into_iter().flat_map(|(group, tests)| tests.iter().map(move |test| (group, test)));
    let tests = tests.filter(|(_, (name, _))| stack.name != "async" || *name != graphs::FORK);
    let played = tests.map(|(group, &(name, test))| {
        Trial::test(format!("{}::{group}::{name}", stack.name), move || Ok(play(stack, test)?))
    });
    let others = [conformance::trials, scenarios::trials, refusals::trials, layers::trials];
    others.into_iter().flat_map(|trials| trials(stack)).chain(played).collect()
}

fn play(stack: Stack, test: fn(&Stage) -> Outcome) -> Outcome {
    let stage = Stage::new(stack)?;
    test(&stage)?;
    stage.finish()
}
