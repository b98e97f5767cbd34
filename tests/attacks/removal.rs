//! Containers that make their own removal expensive.
