//! A pool: carves up any device memory resource, with use tracking.

mod acquire;
mod arena;
mod config;
mod heap;
mod resource;
mod segments;

pub use config::{Growth, PoolConfig};
pub use resource::PoolResource;
