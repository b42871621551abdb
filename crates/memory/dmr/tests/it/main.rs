//! The tests of the crate on the driver that the process uses.

#[path = "../peers/mod.rs"]
mod peers;

mod a2_tenant_builder;
mod a2_tenants;
mod a4_layers_of_a_runtime;
mod a6_spill;
mod d1_builder;
mod d1_direct_build;
mod d1_try_get;
mod d3_errors;
mod d7_pinned_runtime;
mod d8_tokio;
mod d9_growing_buffers;
mod g2_spillable_buffers;
mod g4_names;
mod g5_calls_in_a_capture;
mod peers_access;
mod peers_launches;
mod r10_giving_away;
mod s3_pinned_drop_orders;
mod t8_one_error;
mod u15_disjoint_parts;
