//! The fault of a kernel that accesses addresses without a mapping, on the driver that this process
//! uses, in a process of its own, because the fault ends the context.
#![allow(unsafe_code)] // the driver is called directly

mod support;

use dmr_sim::{Driver, Footprint, Universe};
use support::gpu::{self, Gpu, code, kernel, launch, sync};
use support::virtual_memory::{PAGE, reserve};

const STORE: &str = ".version 8.0
.target sm_80
.address_size 64

.visible .entry store(
	.param .u64 store_param_0
)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [store_param_0];
	cvta.to.global.u64 %rd2, %rd1;
	mov.u32 %r1, 7;
	st.global.u32 [%rd2], %r1;
	ret;
}
";

#[test]
fn a_kernel_in_a_hole_faults_and_the_error_stays() {
    let (universe, _gpu) = match dmr_sim::select().expect("a driver") {
        Driver::Cuda => (None, Gpu::on(0)),
        Driver::Simulated(_) => {
            let universe = Universe::new().expect("the simulator installs");
            universe.register_kernel(
                "store",
                |args| Footprint::new().writes(args.u64(0), 4),
                |args, memory| memory.write(args.u64(0), &7u32.to_le_bytes()),
            );
            let gpu = Gpu::new(&universe);
            (Some(universe), gpu)
        }
    };
    let store = kernel(STORE, "store").expect("the module loads");
    let a = gpu::stream();
    let block = gpu::malloc(64).expect("cuMemAlloc");
    launch(store, &[block], a).expect("where it may");
    sync(a).expect("where it may");
    let hole = reserve(PAGE).expect("reserve");
    let _ = launch(store, &[hole], a);
    assert_eq!(code(sync(a)), Some(700));
    assert_eq!(code(gpu::malloc(64)), Some(700));
    assert_eq!(code(sync(a)), Some(700));
    if let Some(universe) = universe {
        assert_eq!(universe.reports().len(), 1, "the kernel in the hole");
    }
}
