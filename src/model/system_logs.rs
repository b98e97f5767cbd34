//! Which logs of the system the HTTPS API serves.

/// `enableSystemLogHandler` and `enableSystemLogQuery`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemLogs {
    /// None.
    #[default]
    Off,
    /// Files below /var/log.
    Files,
    /// These, and the logs of services (the node log query).
    FilesAndServices,
}
