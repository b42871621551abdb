//! Reads callgrind's profile of one step: instructions of the library, instructions of the
//! simulated driver, and locked instructions of the library.
//!
//! With `--separate-callers` callgrind counts a function once for each stack of callers and writes
//! the stack into the name: `callee'caller'caller of that'...`. So each line of the profile has the
//! stack that executed it, and is counted once: recursion, and functions that both sides call, need
//! no rule of their own.

/// The number of callers that callgrind keeps of each function. Real stacks have about 40.
pub(super) const MAX_FRAMES: usize = 64;

/// The function that makes one operation. Code outside of it is not counted: start-up, the
/// end of the process, other threads.
const STEP: &str = "dmr_bench::steps::Step::once";

/// The start of the names of the simulated driver's functions. The outermost one is the entry point
/// that cudarc calls, and all code that it calls counts as the driver's, whatever its crate.
const DRIVER: &str = "dmr_sim::";

/// The events that callgrind counts with `--collect-bus=yes`: instructions, and those that lock the
/// bus.
const EVENTS: &str = "events: Ir Ge";

/// The instructions of a run of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    /// Instructions outside of driver calls.
    pub(super) ours: u64,
    /// Instructions outside of driver calls that read, modify and write memory atomically.
    pub(super) locked: u64,
    /// Instructions inside of driver calls.
    pub(super) driver: u64,
}

impl Count {
    /// Adds up a profile.
    ///
    /// # Errors
    ///
    /// The reason why the profile cannot be read exactly: it has no locked instructions, no
    /// operation, or a stack that callgrind cut off.
    pub(super) fn of(profile: &str) -> Result<Self, String> {
        if !profile.lines().any(|line| line == EVENTS) {
            return Err(format!("no line `{EVENTS}`"));
        }
        let mut count = Self::default();
        let mut side = Side::Outside;
        let mut lines = profile.lines();
        while let Some(line) = lines.next() {
            if let Some(stack) = line.strip_prefix("fn=") {
                side = Side::of(stack)?;
            } else if line.starts_with("calls=") {
                // The next line has the cost of the callee, which is counted at the callee.
                lines.next();
            } else if let Some((instructions, locked)) = cost(line) {
                match side {
                    Side::Outside => {}
                    Side::Driver => count.driver += instructions,
                    Side::Ours => {
                        count.ours += instructions;
                        count.locked += locked;
                    }
                }
            }
        }
        if count.ours == 0 {
            return Err(format!("no instruction of the library inside of `{STEP}`"));
        }
        Ok(count)
    }
}

/// The part of the program that executes an instruction.
enum Side {
    /// Not in the step.
    Outside,
    /// In the step, and not in a driver call.
    Ours,
    /// In a driver call of the step.
    Driver,
}

impl Side {
    fn of(stack: &str) -> Result<Self, String> {
        if stack.split('\'').count() >= MAX_FRAMES {
            return Err(format!("a stack of {MAX_FRAMES} frames or more may be cut off: {stack}"));
        }
        Ok(match (stack.contains(STEP), stack.contains(DRIVER)) {
            (false, _) => Self::Outside,
            (true, false) => Self::Ours,
            (true, true) => Self::Driver,
        })
    }
}

/// Returns both costs in a line `position instructions locked`, where zeros at the end are left
/// out; `None` for any other line.
fn cost(line: &str) -> Option<(u64, u64)> {
    if !line.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut costs = line.split_whitespace().skip(1).map(|number| number.parse().ok());
    let instructions = costs.next()??;
    Some((instructions, costs.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOCATE: &str = "dmr_pool::allocate'dmr_bench::steps::Step::once'dmr_bench::main";
    const ENTRY: &str = "dmr_sim::driver::event::cuEventQuery";

    /// A function with its stack, its own costs, and its calls: the callees and the inclusive
    /// costs of the calls, which are not counted.
    type Function<'a> = (&'a str, &'a str, &'a [(&'a str, u64)]);

    fn profile(functions: &[Function<'_>]) -> String {
        let mut text = format!("version: 1\ncreator: callgrind-3.19.0\n{EVENTS}\n\nob=x\nfl=y\n");
        for (stack, own, calls) in functions {
            text += &format!("fn={stack}\n7 {own}\nfi=z\n");
            for (callee, inclusive) in *calls {
                text += &format!("cfn={callee}\ncalls=1 9 \n8 {inclusive} 1\n");
            }
        }
        text + "\ntotals: 99 9\n"
    }

    fn count(functions: &[Function<'_>]) -> Count {
        Count::of(&profile(functions)).unwrap()
    }

    #[test]
    fn a_call_from_the_driver_through_std_back_into_the_driver_is_one_driver_call() {
        let entry = format!("{ENTRY}'{ALLOCATE}");
        let closure = format!("core::ops::FnOnce::call_once'{entry}");
        let engine = format!("dmr_sim::engine::step'{closure}");
        let heap = format!("malloc'{engine}");
        let counted = count(&[
            (ALLOCATE, "50", &[(&entry, 100)]),
            (&entry, "10", &[(&closure, 90)]),
            (&closure, "20", &[(&engine, 70)]),
            (&engine, "30", &[(&heap, 40)]),
            (&heap, "40", &[]),
        ]);
        assert_eq!(counted, Count { ours: 50, locked: 0, driver: 100 });
    }

    #[test]
    fn recursion_is_counted_once_on_either_side() {
        let ours = format!("dmr_pool::search'2'dmr_pool::search'{ALLOCATE}");
        let entry = format!("{ENTRY}'{ours}");
        let driver = format!("dmr_sim::engine::visit'2'dmr_sim::engine::visit'{entry}");
        let counted = count(&[
            (ALLOCATE, "5", &[(&ours, 600)]),
            (&ours, "60", &[(&ours, 500), (&entry, 400)]),
            (&entry, "7", &[(&driver, 300)]),
            (&driver, "80", &[(&driver, 200)]),
        ]);
        assert_eq!(counted, Count { ours: 65, locked: 0, driver: 87 });
    }

    #[test]
    fn a_function_of_ours_that_the_driver_calls_is_the_drivers() {
        let entry = format!("dmr_sim::driver::execution::cuLaunchHostFunc'{ALLOCATE}");
        let callback = format!("dmr_pool::host_function'{entry}");
        let nested = format!("{ENTRY}'{callback}");
        let counted = count(&[
            (ALLOCATE, "3", &[(&entry, 60)]),
            (&entry, "10", &[(&callback, 50)]),
            (&callback, "20 4", &[(&nested, 30)]),
            (&nested, "30", &[]),
        ]);
        assert_eq!(counted, Count { ours: 3, locked: 0, driver: 60 });
    }

    #[test]
    fn a_function_that_both_sides_call_is_counted_where_it_is_called() {
        let ours = format!("malloc'{ALLOCATE}");
        let entry = format!("{ENTRY}'{ALLOCATE}");
        let theirs = format!("malloc'{entry}");
        let counted = count(&[(&ours, "4", &[]), (&entry, "1", &[]), (&theirs, "8", &[])]);
        assert_eq!(counted, Count { ours: 4, locked: 0, driver: 9 });
    }

    #[test]
    fn locked_instructions_are_counted_outside_of_driver_calls_only() {
        let entry = format!("{ENTRY}'{ALLOCATE}");
        let counted = count(&[(ALLOCATE, "50 3", &[(&entry, 9)]), (&entry, "9 2", &[])]);
        assert_eq!(counted, Count { ours: 50, locked: 3, driver: 9 });
    }

    #[test]
    fn start_up_and_other_threads_are_not_counted() {
        let counted = count(&[
            ("dmr_bench::main'main", "1000 10", &[]),
            ("dmr_sim::universe::Universe::new'dmr_bench::main'main", "1000", &[]),
            ("dmr_adaptors::logging::write'start_thread", "1000", &[]),
            (ALLOCATE, "1", &[]),
        ]);
        assert_eq!(counted, Count { ours: 1, locked: 0, driver: 0 });
    }

    #[test]
    fn a_profile_that_cannot_be_exact_is_refused() {
        let error = |text: &str| Count::of(text).unwrap_err();
        let deep = "f'".repeat(MAX_FRAMES) + ALLOCATE;
        assert!(error(&profile(&[(&deep, "1", &[])])).contains("may be cut off"));
        assert!(error(&profile(&[("main", "1", &[])])).contains("no instruction of the library"));
        let only_driver = format!("{ENTRY}'{ALLOCATE}");
        assert!(
            error(&profile(&[(&only_driver, "1", &[])])).contains("no instruction of the library")
        );
        let unlocked = profile(&[(ALLOCATE, "1", &[])]).replace(EVENTS, "events: Ir");
        assert!(error(&unlocked).contains("Ir Ge"));
    }
}
