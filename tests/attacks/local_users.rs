//! Local users, readers of the log, and what a person sees on a terminal.
