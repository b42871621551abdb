//! Tests of whole runs, with shell scripts in place of Compute Sanitizer and of the programs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::check;
use super::options::Options;
use super::rows::{Build, Tool};
use super::tool::Search;
use crate::bundle::pack;
use crate::bundle::script::alone;

/// A script in place of compute-sanitizer: the program writes the report of the tool.
const TOOL: &str = r#"#!/bin/sh
case "$1" in
    --version) echo "Version 2026.4.0.0 (build 1)"; exit ;;
    --help) echo "  --dump-kernel-launches"; exit ;;
esac
while [ $# -gt 0 ]; do
    case "$1" in
        --tool) export TOOL=$2; shift 2 ;;
        --save) export XML=$2; shift 2 ;;
        --log-file) export LOG=$2; shift 2 ;;
        --xml | --dump-* | --force-*) shift ;;
        --*) shift 2 ;;
        *) break ;;
    esac
done
: >"$LOG"
"$@"
status=$?
echo "========= ERROR SUMMARY: $(grep -o '<record>' "$XML" | wc -l) errors" >>"$LOG"
exit $status
"#;

/// A GPU machine of scripts.
struct Scene {
    folder: TempDir,
}

impl Scene {
    /// Every row is clean on it.
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        scene.put("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 580.159.04'\n");
        scene.put("compute-sanitizer", TOOL);
        for build in Build::ALL {
            let backends = build.backends();
            scene.put(&format!("{}/device", build.folder()), &device(backends, ""));
            scene.put(&format!("{}/control", build.folder()), &control(backends, "leak"));
        }
        scene
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        pack::script(text, &path).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn search(&self) -> Search {
        Search { nvidia_smi: self.path("nvidia-smi"), tools: vec![self.path("compute-sanitizer")] }
    }

    /// Runs; `Err` has the message.
    fn run(&self, arguments: &[&str]) -> Result<(), String> {
        let mut options = Options::parse(arguments).unwrap();
        options.programs = Some(self.folder.path().to_owned());
        check(&options, &self.search()).map_err(|failure| failure.to_string())
    }

    /// Returns how many programs were started under the tool.
    fn started(&self) -> usize {
        let text = std::fs::read_to_string(self.path("started")).unwrap_or_default();
        text.lines().count()
    }
}

/// A canary record of each tool, as the tool writes it.
fn canary(tool: Tool) -> String {
    let sample = match tool {
        Tool::Memcheck => include_str!("samples/overrun.xml"),
        Tool::Initcheck => include_str!("samples/uninitialized.xml"),
        Tool::Racecheck => include_str!("samples/shared-race.xml"),
        Tool::Synccheck => include_str!("samples/divergent-barrier.xml"),
    };
    let sample =
        sample.replace("<func>", "<func>dmr_canary_").replace("<kernel>", "<kernel>dmr_canary_");
    sample.replace("</ComputeSanitizerOutput>", "").replace('\n', " ")
}

/// A device program that runs 3 tests, with shell commands of the test's own at the end.
fn device(backends: &str, last: &str) -> String {
    let [memcheck, initcheck, racecheck, synccheck] =
        [Tool::Memcheck, Tool::Initcheck, Tool::Racecheck, Tool::Synccheck].map(canary);
    format!(
        r#"#!/bin/sh
echo "$TOOL" >>"$(dirname "$0")/../started"
[ "$DMR_DRIVER" = cuda ] && [ "$DMR_CANARY" = "$TOOL" ] || exit 9
case "$TOOL" in
    memcheck) echo '{memcheck}' ;;
    initcheck) echo '{initcheck}' ;;
    racecheck) echo '{racecheck}' ;;
    synccheck) echo '{synccheck}' ;;
esac >"$XML"
cat >"$LOG" <<END
=========     Access to 0x7fc33ca003e8 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fc33ca00000 of size 1,000 bytes
END
echo "<record><kind>LaunchInfo</kind><what><kernel>k</kernel></what></record>" >>"$XML"
echo "</ComputeSanitizerOutput>" >>"$XML"
echo "dmr-sanitize: canary: $TOOL ran"
echo "dmr-sanitize: backends: {backends}"
echo "test result: ok. 3 passed; 0 failed"
{last}
"#
    )
}

/// A control program with one control, a leak, that the tool reports as the given sample.
fn control(backends: &str, sample: &str) -> String {
    let sample = match sample {
        "leak" => include_str!("samples/two-processes.xml"),
        "race" => include_str!("samples/shared-race.xml"),
        _ => "<ComputeSanitizerOutput/>",
    };
    format!(
        "#!/bin/sh\nif [ \"$1\" = --list ]; then printf 'leak-direct\\tmemcheck\\tdirect\\tleak\\n'; exit; fi\n\
         echo control >>\"$(dirname \"$0\")/../started\"\n\
         [ -z \"$DMR_CANARY\" ] || exit 9\n\
         echo 'dmr-sanitize: backends: {backends}'\ncat >\"$XML\" <<'END'\n{sample}\nEND\n"
    )
}

#[test]
fn a_machine_on_which_every_row_is_as_expected_is_clean() {
    let _alone = alone();
    let scene = Scene::new();
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 12);
}

#[test]
fn one_red_row_makes_the_run_red() {
    let _alone = alone();
    let scene = Scene::new();
    scene.put("pool-direct/device", &device("direct nvtx pool", "exit 101"));
    let failure = scene.run(&[]).unwrap_err();
    assert!(failure.contains("4 rows are red, 0 have not run, of 12"), "{failure}");
}

#[test]
fn a_control_that_is_clean_or_of_another_class_makes_the_run_red() {
    let _alone = alone();
    for sample in ["nothing", "race"] {
        let scene = Scene::new();
        scene.put("direct/control", &control("direct", sample));
        let failure = scene.run(&[]).unwrap_err();
        assert!(failure.contains("1 rows are red"), "{sample}: {failure}");
    }
}

#[test]
fn a_choice_that_no_row_has_is_refused_even_where_all_rows_are_finished() {
    let _alone = alone();
    let scene = Scene::new();
    scene.run(&[]).unwrap();
    let failure = scene.run(&["--fresh", "--rows", "async", "--rows", "controll."]).unwrap_err();
    assert!(failure.contains("controll.") && failure.contains("no row"), "{failure}");
    assert_eq!(scene.started(), 12);
}

#[test]
fn finished_rows_are_not_run_again_and_stale_ones_are() {
    let _alone = alone();
    let scene = Scene::new();
    let failure = scene.run(&["--rows", "direct-tracked"]).unwrap_err();
    assert!(failure.contains("0 rows are red, 8 have not run"), "{failure}");
    assert_eq!(scene.started(), 4);
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 12);

    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 12, "all were finished");
    scene.put("direct/device", &device("direct", "# one program"));
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 16, "one program is another one");
    scene.put("direct/device", &device("direct", "# 1st program"));
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 20, "of the same size");
    scene.put("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 590.1'\n");
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 32, "the driver is another one");
    scene.run(&["--fresh", "--rows", "control."]).unwrap();
    assert_eq!(scene.started(), 33);
}

#[test]
fn a_result_that_was_cut_off_is_no_result() {
    let _alone = alone();
    let scene = Scene::new();
    scene.run(&[]).unwrap();
    let path = scene.path("results/rows.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"date\":\"20"), "{text}");
    std::fs::write(&path, &text[..text.len() - 20]).unwrap();
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 13);
    scene.run(&[]).unwrap();
    assert_eq!(scene.started(), 13);
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children() {
    let _alone = alone();
    let scene = Scene::new();
    let hang = "sleep 1000 & echo $! >\"$(dirname \"$0\")/child\"; wait";
    scene.put("all/device", &device("async direct pool virtual", hang));
    let started = Instant::now();
    let failure = scene.run(&["--timeout", "3", "--rows", "memcheck.async"]).unwrap_err();
    assert!(failure.contains("1 rows are red"), "{failure}");
    let child = std::fs::read_to_string(scene.path("all/child")).unwrap();
    let runs = || {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        state.is_ok_and(|state| !state.contains(") Z "))
    };
    // The kernel needs a moment for what was killed.
    while runs() {
        assert!(started.elapsed() < Duration::from_secs(60), "the child runs on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_a_gpu_nothing_runs_and_the_run_is_red() {
    let _alone = alone();
    let scene = Scene::new();
    for script in ["exit 9", "true", "echo 'No devices, none'; exit 9"] {
        scene.put("nvidia-smi", &format!("#!/bin/sh\n{script}\n"));
        let failure = scene.run(&[]).unwrap_err();
        assert!(failure.contains("no NVIDIA GPU") && failure.contains("--bundle"), "{failure}");
    }
    std::fs::remove_file(scene.path("nvidia-smi")).unwrap();
    assert!(scene.run(&[]).unwrap_err().contains("no NVIDIA GPU"));
    assert_eq!(scene.started(), 0);
    assert!(!scene.path("results").exists());
}

#[test]
fn without_the_tool_or_with_an_old_one_nothing_runs_and_the_run_is_red() {
    let _alone = alone();
    let scene = Scene::new();
    scene.put("compute-sanitizer", &TOOL.replace("--dump-kernel-launches\"", "--old\""));
    let failure = scene.run(&[]).unwrap_err();
    assert!(failure.contains("cannot report the kernels") && failure.contains("2026.4"));
    std::fs::remove_file(scene.path("compute-sanitizer")).unwrap();
    let failure = scene.run(&[]).unwrap_err();
    for part in ["compute-sanitizer not found", "Install", "--tool PATH", "--bundle"] {
        assert!(failure.contains(part), "{failure}");
    }
    assert_eq!(scene.started(), 0);
    assert!(!scene.path("results").exists());
}

#[test]
fn the_tool_of_the_command_line_is_the_only_one_tried() {
    let search = Search::new(Some(Path::new("/x/compute-sanitizer")));
    assert_eq!(search.tools, [Path::new("/x/compute-sanitizer")]);
    assert_eq!(Search::new(None).tools[0], Path::new("compute-sanitizer"));
}

#[test]
fn the_script_of_the_bundle_runs_its_own_programs() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let runner = folder.path().join("bin/xtask");
    std::fs::create_dir_all(runner.parent().unwrap()).unwrap();
    pack::script("#!/bin/sh\necho \"$@\"\nexit 3\n", &runner).unwrap();
    let script = folder.path().join("sanitize.sh");
    pack::script(include_str!("sanitize.sh"), &script).unwrap();
    let mut command = std::process::Command::new(&script);
    let output =
        command.args(["--rows", "x"]).env_remove("RESULTS").current_dir("/").output().unwrap();
    let here = folder.path().canonicalize().unwrap();
    let expected = format!("sanitize --programs {0} --out {0}/results --rows x\n", here.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(output.status.code(), Some(3));
}
