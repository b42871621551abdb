#!/bin/bash
# Ours and the peers in turn, round by round: what decides is the ratio to the best peer of the same
# round, and the median of the rounds.
#   OUT=dir [ROUNDS=5] [TOTAL=540] [ONLY=regex] ./interleave.sh
# TOTAL    seconds; no round starts that would not fit, by the longest one so far
# ONLY     the pieces with a matching name, as ours_W8 or ^torch$; use another OUT for another choice.
#          Without it all but W2 and W9, for which a run has no time beside the others
# SCALE    the share of the operations (0.2), the same for ours and the peers
# SQUEEZE  seconds after which a pass of W8 or W9 is cut short (2.5)
# PERCENTS the shares of the limit that the threads of W9 hold (60,80,90,95)
# BENCH    dmr-bench; TRACES: the folder of the traces (both beside this script); PY: a Python with torch
# Appends to $OUT/results.jsonl, each line with the field `round`; a round that is in it is not run
# again. Lines of a round that was cut short go to $OUT/incomplete.jsonl. The tables: $OUT/ratios.md.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
: "${OUT:?names the folder for the results}"
ROUNDS=${ROUNDS:-5} TOTAL=${TOTAL:-540} SCALE=${SCALE:-0.2} SQUEEZE=${SQUEEZE:-2.5} PERCENTS=${PERCENTS:-60,80,90,95}
ONLY=${ONLY:-'^(ours|rmm)_W[13458]$|^torch$'}
BENCH=$(realpath "${BENCH:-$here/dmr-bench}") TRACES=$(realpath "${TRACES:-$here/traces}") PY=${PY:-python3}
mkdir -p "$OUT" && OUT=$(realpath "$OUT") && cd "$here" || exit 2
results=$OUT/results.jsonl log=$OUT/run.log part=$(mktemp)
touch "$results"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
begun=$SECONDS
traces=("$TRACES"/*.csv.gz)
ours=pool-pages,pool,pool-compact-pages,async
peers=pool,pool0,arena,binning,cuda_async

# piece NAME LIMIT COMMAND...: adds what it prints to the round.
piece() {
    local name=$1 limit=$2 left=$((TOTAL - (SECONDS - begun))) start=$SECONDS status; shift 2
    [[ $name =~ $ONLY ]] || return 0
    if [ "$left" -lt 3 ]; then complete=0; return 0; fi
    [ "$limit" -le "$left" ] || limit=$left
    echo "== round $round, $name: $*" >>"$log"
    timeout -k 3 "$limit" "$@" >>"$part" 2>>"$log"; status=$?
    # A line that was cut short must not spoil the next one.
    [ -z "$(tail -c1 "$part")" ] || echo >>"$part"
    [ "$status" -eq 0 ] || echo "{\"bench\":\"interleave\",\"resource\":\"-\",\"workload\":\"$name\",\"error\":\"exit status $status\"}" >>"$part"
    [ "$status" -ne 124 ] || [ "$limit" -lt "$left" ] || complete=0
    took="$took $name $((SECONDS - start))"
}
# both WORKLOAD: ours and RMM's; in every other round RMM's first.
both() {
    if [ $((round % 2)) -eq 1 ]; then "ours_$1"; "rmm_$1"; else "rmm_$1"; "ours_$1"; fi
}
run_ours() { piece "ours_$1" "${allowed:-60}" "$BENCH" run --resources $ours --scale "$SCALE" --no-latency --rounds 7 --workloads "${@:2}"; }
run_rmm() { piece "rmm_$1" "${allowed:-60}" ./rmm_bench "${@:2}" --resources $peers --scale "$SCALE" --no-latency --cold-only-s 1; }
# `allowed`: the seconds of a piece.
ours_W1() { run_ours W1 w1 --budget-s 2; }
rmm_W1() { run_rmm W1 pingpong --budget-s 2; }
ours_W2() { run_ours W2 w2 --blocks 100000 --max-mib 1,4096 --budget-s 2; }
rmm_W2() { run_rmm W2 random --num 100000 --max-mib 1,4096 --budget-s 2; }
ours_W3() { run_ours W3 w3 --threads 1,4,16 --budget-s 2; }
rmm_W3() { run_rmm W3 multistream --threads 1,4,16 --budget-s 2; }
ours_W4() { run_ours W4 w4 --traces "${traces[@]}" --budget-s 2; }
rmm_W4() { run_rmm W4 replay "${traces[@]}" --budget-s 2; }
ours_W5() { run_ours W5 w5 --budget-s 2; }
rmm_W5() { run_rmm W5 crossstream --budget-s 2; }
# Of the pool over blocks also without a limit on what the driver's pool holds.
ours_W8() { ours=$ours,pool-budget run_ours W8 w8 --budget-s "$SQUEEZE"; }
rmm_W8() { run_rmm W8 pressure --budget-s "$SQUEEZE"; }
ours_W9() { ours=pool-pages,pool,pool-compact-pages,async allowed=120 run_ours W9 w9 --percents "$PERCENTS" --budget-s "$SQUEEZE"; }
rmm_W9() { allowed=120 run_rmm W9 pressure_work --percents "$PERCENTS" --budget-s "$SQUEEZE"; }
# run_torch NAME WORKLOADS...: in one process.
run_torch() { piece "$1" 120 "$PY" torch_bench.py --parts raw --scale "$SCALE" --no-latency --workloads "${@:2}"; }
torch() {
    run_torch torch pingpong,multistream,replay,crossstream,pressure --traces "${traces[@]}" --threads 1,4,16 \
        --budget-s "$SQUEEZE"
}
torch_W2() { run_torch torch_W2 random --num 100000 --max-mib 1,4096 --budget-s 2; }
torch_W9() { run_torch torch_W9 pressure_work --percents "$PERCENTS" --budget-s "$SQUEEZE"; }

longest=0
for round in $(seq "$ROUNDS"); do
    mark="{\"round\":$round,\"bench\":\"interleave\",\"resource\":\"-\",\"workload\":\"round\""
    if grep -qF "$mark" "$results"; then echo "round $round: there already"; continue; fi
    if [ $((TOTAL - (SECONDS - begun))) -lt "$longest" ]; then echo "round $round: no time left"; break; fi
    start=$SECONDS complete=1 took=""
    : >"$part"
    for workload in W1 W2 W3 W4 W5 W8 W9; do both $workload; done
    torch; torch_W2; torch_W9
    seconds=$((SECONDS - start))
    if [ $complete -eq 0 ]; then
        sed "s/^{/{\"round\":$round,/" "$part" >>"$OUT/incomplete.jsonl"
        echo "round $round: cut short after ${seconds}s:$took"
        break
    fi
    # All of a round or nothing.
    { grep -v "^{\"round\":$round," "$results"; sed "s/^{/{\"round\":$round,/" "$part"; echo "$mark,\"seconds\":$seconds}"; } >"$results.new"
    mv "$results.new" "$results"
    [ $seconds -le "$longest" ] || longest=$seconds
    echo "round $round: ${seconds}s:$took"
done
rm -f "$part"
"$BENCH" ratios "$results" | tee "$OUT/ratios.md"
