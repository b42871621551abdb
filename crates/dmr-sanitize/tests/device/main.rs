//! A subset of the device tests, on every stack or on the one that `--stack` names: what runs under
//! Compute Sanitizer. Without a GPU it runs on the simulated driver.

mod conformance;

use std::env;
use std::process::ExitCode;

use dmr_sanitize::machine::Machine;
use dmr_sanitize::stacks::{STACKS, Stack};
use dmr_sanitize::{Outcome, canary, lines};
use libtest_mimic::{Arguments, Conclusion, Trial};

fn main() -> Outcome<ExitCode> {
    let arguments: Vec<String> = env::args().collect();
    if let [_, flag, tool] = &*arguments
        && flag == canary::ARGUMENT
    {
        canary::commit(tool.parse()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    canary::run_if_asked()?;
    let (arguments, stacks) = take_stack(arguments)?;
    Ok(run(Arguments::from_iter(arguments), &stacks)?.exit_code())
}

/// Removes `--stack NAME` from the arguments; returns every stack if it is not there.
fn take_stack(mut arguments: Vec<String>) -> Outcome<(Vec<String>, Vec<Stack>)> {
    let Some(at) = arguments.iter().position(|argument| argument == "--stack") else {
        return Ok((arguments, STACKS.to_vec()));
    };
    let name = arguments.get(at + 1).ok_or("--stack needs a name")?;
    let stack = Stack::find(name)?;
    arguments.drain(at..at + 2);
    Ok((arguments, vec![stack]))
}

fn run(mut arguments: Arguments, stacks: &[Stack]) -> Outcome<Conclusion> {
    let machine = Machine::select()?;
    if !arguments.list {
        lines::backends();
        for stack in stacks {
            lines::stack(&stack.make(&machine.streams()?)?);
        }
    }
    // Keeps the context: to make one for each test would take most of the time.
    let device = machine.universe().is_none().then(|| machine.device()).transpose()?;
    if device.is_some() {
        // Tests measure nothing against each other, and tools name kernels in order.
        arguments.test_threads.get_or_insert(1);
    }
    let trials = stacks.iter().flat_map(|&stack| trials_of(stack)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(device);
    Ok(conclusion)
}

fn trials_of(stack: Stack) -> Vec<Trial> {
    conformance::trials(stack)
}
