#!/bin/sh
# Runs every executable of this bundle on the simulated driver, then on the GPU.
#   ./run.sh           both
#   ./run.sh sim       the simulated driver only
#   ./run.sh cuda      the GPU only
# LIMIT (seconds, 1200) ends an executable that hangs; LOGS names the folder for what they print.
# What needs two GPUs (tests with peers_ in their path, examples peers_* and two_gpus) is left out where there are fewer.
# The exit status is 0 if everything else ran, passed, and every test executable ran a test.
set -u
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 2
logs=${LOGS:-$(mktemp -d)} && mkdir -p "$logs" || exit 2
limit=${LIMIT:-1200}
export DMR_BUNDLE="$here"
unset DMR_BACKEND
# Nothing may depend on where it is started.
cd "$logs" || exit 2

failed=0 ran=0 passed=0 left_out=0 gpus=0
limited() {
    if command -v timeout >/dev/null; then timeout -k 5 "$limit" "$@"; else "$@"; fi
}
# complain NAME WHY: what it printed last, for the reader of the summary.
complain() {
    failed=$((failed + 1))
    # At once: executables run side by side.
    printf '%s\n%s\n' "FAILED $driver $1: $2 (log: $log)" "$(tail -n 25 "$log" | sed 's/^/    /')"
}
# run NAME COMMAND...
run() {
    name=$1; shift
    log="$logs/$driver.$name.log"
    ran=$((ran + 1))
    DMR_DRIVER=$driver limited "$@" >"$log" 2>&1
    status=$?
    [ "$status" -eq 0 ] || complain "$name" "exit status $status"
    return "$status"
}
# leave_out COUNT WHAT: says so.
leave_out() {
    left_out=$((left_out + $1))
    echo "left out $driver $2: needs 2 GPUs, and there are $gpus"
}
# counted WORD: the number before WORD in the last line "test result" of the log.
counted() {
    sed -n "s/^test result: ok\..* \([0-9]*\) $1.*/\1/p" "$log" | tail -n 1
}
# uses_gpu FILE: all but tests of the simulated driver, unit tests, and tests of crates without a driver.
uses_gpu() {
    case $driver.$(basename "$1") in
        sim.* | *.sim | *.sim_* | *.unit-* | *.dmr-ptx*) return 1 ;;
    esac
}
run_test() {
    name=$(basename "$1")
    if uses_gpu "$1"; then
        # One by one; what needs two GPUs only where there are two.
        [ "$gpus" -ge 2 ] || set -- "$@" --skip peers_
        # A process has one driver: those of the simulated one run in the other pass.
        case $name in *.process) set -- "$1" --skip sim_ ;; esac
        set -- "$@" --test-threads=1
    fi
    run "$name" "$@" || return
    tests=$(counted passed) skipped=$(counted "filtered out")
    case $name in
        *.process) ;;
        *) [ "${skipped:-0}" -eq 0 ] || leave_out "$skipped" "$skipped of $name" ;;
    esac
    passed=$((passed + ${tests:-0}))
    [ $((${tests:-0} + ${skipped:-0})) -gt 0 ] || complain "$name" "ran no test"
}
# run_files gpu|no_gpu: the tests that use the GPU, or the others.
run_files() {
    for file in "$here"/tests/*; do
        [ -f "$file" ] || continue
        if uses_gpu "$file"; then which=gpu; else which=no_gpu; fi
        [ "$which" != "$1" ] || run_test "$file"
    done
}
# Tests that use the GPU run one after the other; the others run beside them, with a lower priority.
run_tests() {
    if [ "$driver" = sim ]; then run_files no_gpu; return; fi
    counts="$logs/counts" && rm -f "$counts"
    (failed=0 ran=0 passed=0; run_files no_gpu; echo "$failed $ran $passed" >"$counts") &
    beside=$!
    trap 'kill "$beside"; exit 2' INT TERM
    command -v renice >/dev/null && renice -n 10 -p "$beside" >/dev/null 2>&1
    run_files gpu
    wait "$beside"
    trap - INT TERM
    more_failed=1 more_ran=0 more_passed=0 # if it was ended
    [ -f "$counts" ] && read -r more_failed more_ran more_passed <"$counts"
    failed=$((failed + more_failed)) ran=$((ran + more_ran)) passed=$((passed + more_passed))
}
run_example() {
    name=$(basename "$1")
    case $driver.$name in
        cuda.peers_* | cuda.two_gpus) [ "$gpus" -ge 2 ] || { leave_out 1 "$name"; return; } ;;
    esac
    run "example-$name" "$1"
}

[ $# -gt 0 ] || set -- sim cuda
for driver in "$@"; do
    case $driver in sim | cuda) ;; *) echo "unknown: $driver (sim, cuda)" >&2; exit 2 ;; esac
    before_failed=$failed before_ran=$ran before_passed=$passed before=$(date +%s)
    [ "$driver" = cuda ] && gpus=$(DMR_DRIVER=cuda "$here/bin/dmr" info | grep -c '^device ')
    run_tests
    for file in "$here"/examples/*; do
        [ -f "$file" ] && run_example "$file"
    done
    run dmr-info "$here/bin/dmr" info
    for trace in "$here"/traces/*.csv.gz; do
        run "dmr-replay-$(basename "$trace" .csv.gz)" "$here/bin/dmr" replay "$trace" --verify
    done
    run dmr-bench "$here/bin/dmr-bench" run --quick --budget-s 1 --workloads w1,w5,w6 --rounds 7
    echo "$driver: $((ran - before_ran)) executables, $((passed - before_passed)) tests passed," \
        "$((failed - before_failed)) failed, $(($(date +%s) - before)) s"
done
[ "$passed" -gt 0 ] || { echo "FAILED: no test was run"; failed=$((failed + 1)); }
echo "total: $ran runs, $passed tests passed, $failed failed, $left_out left out; logs in $logs"
[ "$failed" -eq 0 ]
