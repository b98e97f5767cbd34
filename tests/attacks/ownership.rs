//! State, directories and processes that are not this agent's, or that were taken away from it.
