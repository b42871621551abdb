//! Host time of single operations, on whichever driver the process uses: the simulated one
//! under `cargo xtask bench`.

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use dmr_bench::{Machine, steps};

fn host_cost(criterion: &mut Criterion) {
    let machine = Machine::open(0).expect("a device");
    let steps = steps::all(&machine).expect("the stacks");
    for mut step in steps.into_iter().filter(|step| !step.leaves_rows) {
        let name = step.name.clone();
        criterion.bench_function(&name, |bencher| {
            bencher.iter(|| step.once().expect("the operation"));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = host_cost
}
criterion_main!(benches);
