//! `DMR_DRIVER` accepts exactly two names; an empty value counts as not set.
//!
//! The variable is set in a child process, where this test runs itself again.

#![allow(clippy::print_stdout, reason = "the child tells its parent")]

use std::process::Command;

/// Selects a driver, and prints it for the parent; with `INSTALLED` the program installs the
/// simulator before.
#[test]
#[ignore = "run by the other tests of this file, with DMR_DRIVER set"]
fn child() {
    if std::env::var_os("INSTALLED").is_some() {
        dmr_sim::install().unwrap();
    }
    match dmr_sim::select() {
        Ok(driver) => println!("[{driver:?}]"),
        Err(error) => println!("[{error}]"),
    }
}

fn choose(value: &str, installed: bool) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["driver_variable::child", "--exact", "--ignored", "--nocapture"])
        .env("DMR_DRIVER", value);
    if installed {
        command.env("INSTALLED", "yes");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text.lines().find_map(|line| line.split_once('[')?.1.strip_suffix(']'));
    told.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn sim_is_the_simulated_driver() {
    assert_eq!(choose("sim", false), "Simulated(Requested)");
}

#[test]
fn cuda_is_a_gpu_s_driver_or_an_error() {
    let told = choose("cuda", false);
    let because = ["no libcuda found", "libcuda finds no GPU"];
    let refused = because.iter().any(|because| {
        told == format!(
            "DMR_DRIVER=cuda asks for a GPU, and there is none ({because}): install the NVIDIA \
             driver, use a machine with enough GPUs, or set DMR_DRIVER=sim"
        )
    });
    assert!(refused || told == "Cuda", "{told}");
    assert_eq!(refused, choose("", false) != "Cuda");
}

#[test]
fn cuda_is_an_error_once_the_program_has_installed_the_simulated_driver() {
    let told = choose("cuda", true);
    assert!(told.contains("installed by the program"), "{told}");
}

#[test]
fn an_empty_value_is_as_none() {
    assert_eq!(choose("", true), "Simulated(Installed)");
}

#[test]
fn anything_else_is_an_error_that_lists_what_there_is() {
    for value in ["SIM", "Cuda", " sim", "sim ", "simulated"] {
        let expected = format!("DMR_DRIVER is {value:?}: set it to `sim` or `cuda`, or unset it");
        assert_eq!(choose(value, false), expected);
    }
}
