//! The nodes of a graph, as the program reads them: their order, and the parameters of some kinds.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use crate::support::gpu::{self, machine};
use cudarc::driver::sys::{self, CUgraphNode, CUresult};

unsafe extern "C" fn nothing(_data: *mut c_void) {}

/// Returns the nodes that this function of the driver writes for a node.
fn neighbours(name: &str, node: CUgraphNode) -> Vec<CUgraphNode> {
    type Function = unsafe extern "C" fn(CUgraphNode, *mut CUgraphNode, *mut usize) -> CUresult;
    let found = dmr_sim::driver_functions().into_iter().find(|(known, _)| *known == name).unwrap();
    let address = std::ptr::with_exposed_provenance::<()>(found.1);
    // SAFETY: the function has this type.
    let function = unsafe { std::mem::transmute::<*const (), Function>(address) };
    let mut count = 0;
    // SAFETY: the pointers are null or to live locals, with room for the nodes.
    unsafe {
        function(node, null_mut(), &mut count).result().unwrap();
        let mut nodes = vec![null_mut(); count];
        function(node, nodes.as_mut_ptr(), &mut count).result().unwrap();
        nodes
    }
}

#[test]
fn sim_a_node_has_the_order_and_the_parameters_that_it_was_made_with() {
    const REFUSED: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
    let (_universe, gpu) = machine();
    let event = gpu::event();
    let data = 64 as *mut c_void;
    let mut graph = null_mut();
    let [mut root, mut host, mut record, mut wait, mut memory, mut free] = [null_mut(); 6];
    let call = sys::CUDA_HOST_NODE_PARAMS { fn_: Some(nothing), userData: data };
    let mut zeroed = MaybeUninit::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    // SAFETY: an allocation type of 1 is valid, and so is zero for all other parts but the type of
    // location.
    let (properties, alloc) = unsafe {
        let at = zeroed.as_mut_ptr();
        (*at).poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        (*at).poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        (&raw mut (*at).poolProps.location).cast::<i32>().add(1).write(gpu.device);
        (*at).bytesize = 4096;
        (at, &mut *at)
    };
    // SAFETY: the pointers are null or to live locals, and there is one node at each list of nodes
    // before.
    unsafe {
        sys::cuGraphCreate(&mut graph, 0).result().unwrap();
        sys::cuGraphAddEmptyNode(&mut root, graph, null_mut(), 0).result().unwrap();
        sys::cuGraphAddHostNode(&mut host, graph, &root, 1, &call).result().unwrap();
        sys::cuGraphAddEventRecordNode(&mut record, graph, &root, 1, event).result().unwrap();
        sys::cuGraphAddEventWaitNode(&mut wait, graph, null_mut(), 0, event).result().unwrap();
        sys::cuGraphAddMemAllocNode(&mut memory, graph, null_mut(), 0, properties)
            .result()
            .unwrap();
        sys::cuGraphAddMemFreeNode(&mut free, graph, &memory, 1, alloc.dptr).result().unwrap();
    }
    let before = |node| neighbours("cuGraphNodeGetDependencies", node);
    let after = |node| neighbours("cuGraphNodeGetDependentNodes", node);
    assert_eq!((before(root), before(host), before(free)), (vec![], vec![root], vec![memory]));
    assert_eq!((after(root), after(host), after(memory)), (vec![host, record], vec![], vec![free]));
    let mut known = call;
    let mut events = [null_mut(); 2];
    let mut address = 0;
    known.fn_ = None;
    known.userData = null_mut();
    let mut described = MaybeUninit::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    // SAFETY: as above. The driver has written what is read.
    unsafe {
        sys::cuGraphHostNodeGetParams(host, &mut known).result().unwrap();
        sys::cuGraphEventRecordNodeGetEvent(record, &mut events[0]).result().unwrap();
        sys::cuGraphEventWaitNodeGetEvent(wait, &mut events[1]).result().unwrap();
        sys::cuGraphMemFreeNodeGetParams(free, &mut address).result().unwrap();
        sys::cuGraphMemAllocNodeGetParams(memory, described.as_mut_ptr()).result().unwrap();
        let described = described.assume_init();
        assert_eq!((described.dptr, described.bytesize), (alloc.dptr, 4096));
        let location = (&raw const described.poolProps.location).cast::<i32>().add(1);
        assert_eq!(location.read(), gpu.device);
        assert_eq!(sys::cuGraphMemFreeNodeGetParams(host, &mut address), REFUSED);
        assert_eq!(sys::cuGraphHostNodeGetParams(free, &mut known), REFUSED);
    }
    assert_eq!((known.userData, known.fn_.is_some()), (data, true));
    assert_eq!((events, address), ([event; 2], alloc.dptr));
}
