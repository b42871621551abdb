//! The planted faults are there: the simulated driver reports each that it can see, and nothing
//! else; the list names every control.

use std::process::{Command, Output};

use dmr_sanitize::controls::{CONTROLS, Control};
use dmr_sanitize::lines::PREFIX;
use dmr_sanitize::stacks::BACKENDS;
use dmr_testkit::repository::bundle;

/// Runs `control` on the simulated driver.
fn control(argument: &str) -> Output {
    let built = || env!("CARGO_BIN_EXE_control").into();
    let program = bundle().map_or_else(built, |bundle| bundle.join("bin/control"));
    Command::new(program)
        .arg(argument)
        .env("DMR_DRIVER", "sim")
        .output()
        .expect("the program control")
}

/// The values of the lines `dmr-sanitize: NAME: VALUE` on standard output.
fn values(output: &Output, name: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let start = format!("{PREFIX}{name}: ");
    text.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect()
}

/// Returns the kinds of the simulated driver's reports for a control.
fn expected(control: &Control) -> &'static [&'static str] {
    match control.class {
        // The use was submitted first.
        "use-after-free" if control.name.starts_with("free-while-used") => &["FreeBeforeUse"],
        "overrun" | "underrun" => &["OutOfBounds"],
        "use-after-free" => &["UseAfterFree"],
        "use-before-alloc" => &["UseBeforeAllocation"],
        "uninitialized" => &["Uninitialised"],
        "leak" => &["Leak"],
        "double-free" => &["DoubleFree"],
        "shared-race" | "divergent-barrier" => &["KernelFault"],
        "not-writable" | "undeclared" => &["UndeclaredWrite"],
        class => panic!("a class that this test does not know: {class}"),
    }
}

#[test]
fn the_simulated_driver_reports_every_fault_and_no_other() {
    for planted in CONTROLS {
        let output = control(planted.name);
        assert!(output.status.success(), "{}: {output:?}", planted.name);
        // Each control prints the address of its fault, if that is in device memory.
        let addresses = values(&output, "address");
        let address = addresses.first().map_or("0x0", String::as_str);
        let located = |kind: &&str| format!("{kind} {address}");
        let expected: Vec<_> = expected(planted).iter().map(located).collect();
        assert_eq!(values(&output, "simulator"), expected, "{}", planted.name);
    }
}

#[test]
fn a_control_says_which_backends_are_compiled_in_and_what_it_runs_on() {
    for planted in CONTROLS {
        let output = control(planted.name);
        assert_eq!(values(&output, "backends"), [BACKENDS.join(" ")]);
        let stack = values(&output, "stack");
        let named = stack.iter().all(|stack| stack.to_lowercase().starts_with(planted.stack));
        assert!(stack.len() == 1 && named, "{}: {stack:?}", planted.name);
    }
}

#[test]
fn the_list_has_a_line_for_each_control_and_each_name_is_there_once() {
    let output = control("--list");
    let text = String::from_utf8(output.stdout).expect("text");
    let listed: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let tools = CONTROLS.iter().map(|it| vec![it.name, it.tool.name(), it.stack, it.class]);
    assert_eq!(listed, tools.collect::<Vec<_>>());
    let mut names: Vec<_> = listed.iter().map(|line| line[0]).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CONTROLS.len());
}

#[test]
fn a_name_that_is_not_in_the_list_is_refused_with_the_names_that_are() {
    let output = control("no-such-control");
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("no-such-control"), "{message}");
    assert!(message.contains("overrun-direct"), "{message}");
}

#[test]
fn each_tool_has_a_control() {
    for tool in dmr_sanitize::tool::Tool::ALL {
        assert!(CONTROLS.iter().any(|control| control.tool == tool), "{tool}");
    }
}
