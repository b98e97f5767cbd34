//! Containers that hide what they store on the node's disk.
