//! The interface that the runner uses: the lines of this program, its arguments, and the canary.
//! The program runs itself on the simulated driver.

use std::process::{Command, Output};

use dmr_sanitize::stacks::{BACKENDS, STACKS};
use dmr_sanitize::tool::Tool;
use dmr_sanitize::{Outcome, canary, lines};
use libtest_mimic::Trial;

type Test = (&'static str, fn() -> Outcome);

const TESTS: &[Test] = &[
    ("the_canary_runs_in_a_child_before_anything_else", canary_runs_first),
    ("a_canary_of_no_tool_ends_the_program", no_such_tool),
    ("with_a_stack_the_program_reports_and_runs_that_stack_alone", one_stack),
    ("a_stack_that_the_build_lacks_ends_the_program", no_such_stack),
    ("errors_that_were_provoked_are_printed_once_with_their_count", provoked_errors),
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial =
        |&(name, test): &Test| Trial::test(format!("interface::{name}"), move || Ok(test()?));
    TESTS.iter().map(trial).collect()
}

/// Runs this program with these arguments and this canary.
fn device(arguments: &[&str], canary: Option<&str>) -> Outcome<Output> {
    let mut program = Command::new(std::env::current_exe()?);
    program.args(arguments).env("DMR_DRIVER", "sim").env_remove(canary::VARIABLE);
    program.envs(canary.map(|tool| (canary::VARIABLE, tool)));
    Ok(program.output()?)
}

/// The lines for the runner.
fn reported(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.strip_prefix(lines::PREFIX)).map(str::to_owned).collect()
}

fn canary_runs_first() -> Outcome {
    for tool in Tool::ALL {
        let output = device(&["no_such_test"], Some(tool.name()))?;
        assert!(output.status.success(), "{output:?}");
        let reported = reported(&output);
        // The child reports that the simulated driver has nothing to check.
        assert!(reported[0].starts_with("note: "), "{reported:?}");
        assert_eq!(reported[1], format!("canary: {tool} ran"));
        assert_eq!(reported[2], format!("backends: {}", BACKENDS.join(" ")));
    }
    let without = device(&["no_such_test"], None)?;
    assert!(!reported(&without).iter().any(|line| line.starts_with("canary")), "{without:?}");
    Ok(())
}

fn no_such_tool() -> Outcome {
    let output = device(&["no_such_test"], Some("leakcheck"))?;
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("leakcheck") && message.contains("memcheck"), "{message}");
    Ok(())
}

fn one_stack() -> Outcome {
    for stack in STACKS {
        let reported = reported(&device(&["--stack", stack.name, "no_such_test"], None)?);
        let shown = reported.iter().filter(|line| line.starts_with("stack: ")).count();
        assert_eq!(shown, 1, "{reported:?}");
        let output = device(&["--stack", stack.name, "--list"], None)?;
        let listed = String::from_utf8(output.stdout)?;
        let start = format!("{}::", stack.name);
        assert!(listed.lines().count() > 50, "{listed}");
        assert!(listed.lines().all(|line| line.starts_with(&start)), "{listed}");
    }
    Ok(())
}

fn no_such_stack() -> Outcome {
    let output = device(&["--stack", "no-such-stack"], None)?;
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("no-such-stack") && message.contains("direct-tracked"), "{message}");
    Ok(())
}

fn provoked_errors() -> Outcome {
    let reported = reported(&device(&["--stack", "direct-tracked", "refusals"], None)?);
    let expected = "expect api-error cuMemAlloc_v2 CUDA_ERROR_OUT_OF_MEMORY 1";
    let printed: Vec<_> = reported.iter().filter(|line| line.starts_with("expect")).collect();
    assert_eq!(printed, [expected]);
    Ok(())
}
