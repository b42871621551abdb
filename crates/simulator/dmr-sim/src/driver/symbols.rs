//! The functions of the driver by name.

use super::{
    block_reports, capture, context, copies, copies_3d, device, entry_point, event, first,
    function, graph, graph_attributes, graph_exec, graph_getters, graph_memory, graph_nodes,
    graph_params, launch, library, linker, memory, memset, module, occupancy, peer, per_thread,
    pool, primary, refused, stream, stream_memory, tensor_map, unified, user_objects,
    virtual_memory,
};

/// Returns each function of the simulated driver, by its name and address: for a shared library
/// that exports them.
#[must_use]
pub fn driver_functions() -> Vec<(&'static str, usize)> {
    symbols().into_iter().map(|(name, address)| (name, address as usize)).collect()
}

/// Every symbol and its address.
pub(crate) fn symbols() -> Vec<(&'static str, u64)> {
    let chapters = [
        device::SYMBOLS,
        primary::SYMBOLS,
        context::SYMBOLS,
        stream::SYMBOLS,
        event::SYMBOLS,
        memory::SYMBOLS,
        copies::SYMBOLS,
        copies_3d::SYMBOLS,
        memset::SYMBOLS,
        unified::SYMBOLS,
        pool::SYMBOLS,
        peer::SYMBOLS,
        module::SYMBOLS,
        library::SYMBOLS,
        linker::SYMBOLS,
        function::SYMBOLS,
        launch::SYMBOLS,
        occupancy::SYMBOLS,
        first::SYMBOLS,
        entry_point::SYMBOLS,
        per_thread::SYMBOLS,
        capture::SYMBOLS,
        graph::SYMBOLS,
        graph_exec::SYMBOLS,
        graph_getters::SYMBOLS,
        graph_nodes::SYMBOLS,
        graph_params::SYMBOLS,
        graph_attributes::SYMBOLS,
        graph_memory::SYMBOLS,
        user_objects::SYMBOLS,
        virtual_memory::SYMBOLS,
        stream_memory::SYMBOLS,
        block_reports::SYMBOLS,
        tensor_map::SYMBOLS,
        refused::SYMBOLS,
    ];
    let all = chapters.into_iter().flatten();
    all.map(|(name, address)| (*name, address() as u64)).collect()
}
