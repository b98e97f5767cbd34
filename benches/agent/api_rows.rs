//! The rows of [`crate::api`].

use crate::results::Goal;

/// What `kubectl logs` prints of the large log, in megabytes (10^6 bytes).
pub const LOG_MB: u64 = 1000;
/// Connections at a time through one `kubectl port-forward`.
pub const FORWARDED: usize = 100;
/// Clients without a certificate that shake hands.
pub const ATTACKERS: usize = 8;

/// What is measured of the HTTPS API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApiRow {
    /// Seconds that `kubectl logs --tail=10` of a large log takes.
    LogTail,
    /// Megabytes a second of `kubectl logs` of a large log.
    LogRate,
    /// Seconds that `kubectl exec POD -- true` takes.
    Exec,
    /// Seconds until many connections through one `kubectl port-forward` all have an answer.
    Forward,
    /// TLS handshakes a second that clients without a certificate reach.
    Handshakes,
    /// The most seconds between two renewals of the node's lease during these handshakes.
    LeaseGap,
    /// The agent's CPU time during these handshakes, in percent of one core.
    HandshakesCpu,
    /// The agent's largest resident memory during these handshakes, in MiB.
    HandshakesRss,
}

impl ApiRow {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::LogTail,
        Self::LogRate,
        Self::Exec,
        Self::Forward,
        Self::Handshakes,
        Self::LeaseGap,
        Self::HandshakesCpu,
        Self::HandshakesRss,
    ];

    /// In words.
    pub fn label(self) -> String {
        let meanwhile = format!("during handshakes by {ATTACKERS} clients");
        match self {
            Self::LogTail => format!("kubectl logs --tail=10 of {LOG_MB} MB"),
            Self::LogRate => format!("kubectl logs of {LOG_MB} MB"),
            Self::Exec => "kubectl exec POD -- true".to_owned(),
            Self::Forward => {
                format!("{FORWARDED} connections through kubectl port-forward → all answered")
            }
            Self::Handshakes => {
                format!("TLS handshakes a second by {ATTACKERS} clients without a certificate")
            }
            Self::LeaseGap => format!("longest time between lease renewals {meanwhile}"),
            Self::HandshakesCpu => format!("CPU {meanwhile}"),
            Self::HandshakesRss => format!("peak RSS {meanwhile}"),
        }
    }

    /// As files call it.
    pub fn id(self) -> &'static str {
        match self {
            Self::LogTail => "log_tail_seconds",
            Self::LogRate => "log_mb_per_second",
            Self::Exec => "kubectl_exec_seconds",
            Self::Forward => "forward_seconds",
            Self::Handshakes => "handshakes_per_second",
            Self::LeaseGap => "handshakes_lease_gap_seconds",
            Self::HandshakesCpu => "handshakes_cpu_percent",
            Self::HandshakesRss => "handshakes_peak_rss_mib",
        }
    }

    /// A figure with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::LogTail | Self::Exec | Self::Forward => format!("{value:.3} s"),
            Self::LogRate => format!("{value:.0} MB/s"),
            Self::Handshakes => format!("{value:.0}"),
            Self::LeaseGap => format!("{value:.1} s"),
            Self::HandshakesCpu => format!("{value:.0} %"),
            Self::HandshakesRss => format!("{value:.1} MiB"),
        }
    }

    /// What nodelet is held to: the lease is renewed on time whatever clients do.
    pub fn goal(self) -> Goal {
        match self {
            Self::LeaseGap => Goal::AtMost(15.0),
            Self::LogTail | Self::LogRate | Self::Exec | Self::Forward => Goal::None,
            Self::Handshakes | Self::HandshakesCpu | Self::HandshakesRss => Goal::None,
        }
    }
}
