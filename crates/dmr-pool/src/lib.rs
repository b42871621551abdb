//! A pool: carves up any device memory resource, with use tracking.

mod acquire;
mod arena;
mod config;
mod heap;
mod resource;
mod segments;
mod slack;

pub use config::PoolConfig;
pub use resource::PoolResource;
