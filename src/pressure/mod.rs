//! Pressure: the node runs short of memory, disk or process ids, and pods have to go before it
//! chokes.

pub mod core;
