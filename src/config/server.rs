//! The HTTPS API of the node (the kubelet API): where it listens, whom it lets in, and whether it is
//! served at all.

use super::{
    read::{Reader, Zero},
    settings::{Authorization, ServerConfig},
    tree::Mistake,
};
use crate::model::SystemLogs;
use serde_json::Value as Json;
use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

const ANY_TIME: RangeInclusive<Duration> = Duration::ZERO..=Duration::MAX;
const SUITES: &str = "tlsCipherSuites";
const BOOTSTRAP: &str = "serverTLSBootstrap";
const FILES: &str = "enableSystemLogHandler";
const SERVICES: &str = "enableSystemLogQuery";
/// The cipher suites of TLS 1.2 that this agent has. Those of TLS 1.3 can't be chosen, as in Go.
const TLS12_SUITES: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// Other names of some of them.
const ALIASES: [(&str, &str); 2] = [
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];
const TLS13_SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Fields by which somebody asks for the server, the most telling one first.
const MEANT: [&str; 17] = [
    "authentication.x509.clientCAFile",
    "authentication.webhook.enabled",
    "authentication.anonymous.enabled",
    "authorization.mode",
    "address",
    "port",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    SUITES,
    "tlsMinVersion",
    "authentication.webhook.cacheTTL",
    "authorization.webhook.cacheAuthorizedTTL",
    "authorization.webhook.cacheUnauthorizedTTL",
    "streamingConnectionIdleTimeout",
    "enableDebuggingHandlers",
    FILES,
    SERVICES,
];

/// Everything but the directory of certificates, which depends on the root directory.
pub(super) fn settings(r: &mut Reader<'_>, notices: &mut Vec<Mistake>) -> ServerConfig {
    let default = ServerConfig::default();
    let ip = r.filled_text("address").map_or(default.address.ip(), |(text, place)| {
        text.parse().unwrap_or_else(|_| {
            r.invalid(place, "address", Json::from(text), "must be an IP address");
            default.address.ip()
        })
    });
    let port = r.int("port", Zero::Unset, 1..=65535).and_then(|n| u16::try_from(n).ok());
    let read_only = r.int("readOnlyPort", Zero::Unset, 0..=65535);
    let read_only = read_only.and_then(|n| u16::try_from(n).ok()).filter(|port| *port > 0);
    let authorization = match r.filled_text("authorization.mode") {
        None | Some(("Webhook", _)) => Authorization::Webhook,
        Some(("AlwaysAllow", _)) => Authorization::AlwaysAllow,
        Some((other, place)) => {
            let must = "must be Webhook or AlwaysAllow";
            r.invalid(place, "authorization.mode", Json::from(other), must);
            Authorization::Webhook
        }
    };
    let (certificate, key) = (file(r, "tlsCertFile"), file(r, "tlsPrivateKeyFile"));
    for (one, other, missing) in [
        ("tlsCertFile", &key, "tlsPrivateKeyFile"),
        ("tlsPrivateKeyFile", &certificate, "tlsCertFile"),
    ] {
        if let Some((_, place)) = r.filled_text(one).filter(|_| other.is_none()) {
            r.mistakes.push(place.mistake(one, format!("Required value: needs {missing}, too")));
        }
    }
    let mut ttl = |name: &str, default| r.duration(name, Zero::Unset, ANY_TIME).unwrap_or(default);
    let token_ttl = ttl("authentication.webhook.cacheTTL", default.token_ttl);
    let allowed_ttl = ttl("authorization.webhook.cacheAuthorizedTTL", default.allowed_ttl);
    let denied_ttl = ttl("authorization.webhook.cacheUnauthorizedTTL", default.denied_ttl);
    let stream_idle = ttl("streamingConnectionIdleTimeout", default.stream_idle);
    // Only a flag can say zero. It means no limit.
    let stream_idle = if stream_idle.is_zero() { Duration::MAX } else { stream_idle };
    ServerConfig {
        enabled: r.bool("enableServer").unwrap_or(default.enabled),
        address: (ip, port.unwrap_or(default.address.port())).into(),
        read_only: read_only.map(|port| (ip, port).into()),
        certificate: certificate.zip(key),
        bootstrap: r.bool(BOOTSTRAP).unwrap_or(default.bootstrap),
        certificate_dir: default.certificate_dir,
        tls13_only: tls13_only(r, notices),
        tls12_suites: suites(r, notices),
        client_ca: file(r, "authentication.x509.clientCAFile"),
        tokens: r.bool("authentication.webhook.enabled").unwrap_or(default.tokens),
        anonymous: r.bool("authentication.anonymous.enabled").unwrap_or(default.anonymous),
        authorization,
        token_ttl,
        allowed_ttl,
        denied_ttl,
        stream_idle,
        debugging_handlers: r.bool("enableDebuggingHandlers").unwrap_or(default.debugging_handlers),
        system_logs: system_logs(r),
    }
}

fn system_logs(r: &mut Reader<'_>) -> SystemLogs {
    match (r.bool(FILES), r.switched_on(SERVICES)) {
        (Some(false), Some(place)) => {
            r.invalid(
                place,
                SERVICES,
                Json::from(true),
                &format!("{FILES} must not be false then"),
            );
            SystemLogs::Off
        }
        (_, Some(_)) => SystemLogs::FilesAndServices,
        (Some(true), None) => SystemLogs::Files,
        (Some(false) | None, None) => SystemLogs::Off,
    }
}

fn file(r: &mut Reader<'_>, name: &str) -> Option<PathBuf> {
    r.filled_text(name).and_then(|_| r.path(name))
}

fn tls13_only(r: &mut Reader<'_>, notices: &mut Vec<Mistake>) -> bool {
    const FIELD: &str = "tlsMinVersion";
    match r.filled_text(FIELD) {
        Some(("VersionTLS13", _)) => true,
        None | Some(("VersionTLS12", _)) => false,
        Some(("VersionTLS10" | "VersionTLS11", place)) => {
            let message = "raised to VersionTLS12: older versions of TLS are not secure";
            notices.push(place.mistake(FIELD, message));
            false
        }
        Some((other, place)) => {
            r.invalid(place, FIELD, Json::from(other), "must be VersionTLS12 or VersionTLS13");
            false
        }
    }
}

/// The cipher suites of TLS 1.2 that are allowed; empty: all.
fn suites(r: &mut Reader<'_>, notices: &mut Vec<Mistake>) -> Vec<&'static str> {
    let named = r.texts(SUITES).unwrap_or_default();
    let mut suites = Vec::new();
    for (index, (text, place)) in named.iter().enumerate() {
        let alias = ALIASES.iter().find(|(alias, _)| alias == text).map(|(_, name)| *name);
        let wanted = alias.unwrap_or(text);
        match TLS12_SUITES.iter().find(|known| **known == wanted) {
            Some(known) => suites.push(*known),
            None if TLS13_SUITES.contains(text) => {}
            None => {
                let message = format!("not acted on: {text} is not among the supported suites");
                notices.push(place.mistake(&format!("{SUITES}[{index}]"), message));
            }
        }
    }
    if let (Some((_, place)), true) = (named.first(), suites.is_empty()) {
        let known = TLS12_SUITES.join(", ");
        let message = format!("Invalid value: must name at least one of {known}");
        r.mistakes.push(place.mistake(SUITES, message));
    }
    suites
}

/// Requests no certificate where that makes no sense, and reports it.
pub(super) fn settle_bootstrap(
    r: &Reader<'_>,
    config: &mut ServerConfig,
    in_cluster: bool,
    notices: &mut Vec<Mistake>,
) {
    let why = match &config.certificate {
        _ if !config.bootstrap => return,
        Some(_) => "not acted on: tlsCertFile is set",
        None if in_cluster => return,
        None => "not acted on without --kubeconfig: there is no cluster then",
    };
    config.bootstrap = false;
    if let Some((_, place)) = r.leaf(BOOTSTRAP) {
        notices.push(place.mistake(BOOTSTRAP, why));
    }
}

/// Reports what asks for a server that must not run.
pub(super) fn guard(
    r: &Reader<'_>,
    config: &ServerConfig,
    in_cluster: bool,
    notices: &mut Vec<Mistake>,
) {
    let Some(why) = config.off_because(in_cluster).filter(|_| config.enabled) else { return };
    // Defaults that are spelled out ask for nothing.
    if *config == ServerConfig::default() {
        return;
    }
    let meant = MEANT.iter().find_map(|name| Some((*name, r.leaf(name)?.1)));
    if let Some((name, place)) = meant {
        notices.push(place.mistake(name, why));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::config::parse_and_validate;

    fn load(fields: &str) -> Result<(ServerConfig, Vec<String>), String> {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n"
        );
        let loaded = parse_and_validate(text.as_bytes()).map_err(|error| error.to_string())?;
        Ok((loaded.config.server, loaded.config.notices))
    }

    #[test]
    fn a_certificate_is_requested_only_from_a_cluster() {
        for (fields, why) in [
            ("", "not acted on without --kubeconfig: there is no cluster then"),
            ("tlsCertFile: /a\ntlsPrivateKeyFile: /b", "not acted on: tlsCertFile is set"),
        ] {
            let (server, notices) = load(&format!("serverTLSBootstrap: true\n{fields}")).unwrap();
            let told = format!("serverTLSBootstrap: {why}");
            assert!(notices.iter().any(|notice| notice.ends_with(&told)), "{notices:?}");
            assert!(!server.bootstrap);
        }
    }

    #[test]
    fn alone_the_server_needs_a_client_ca_and_no_webhook() {
        let (server, notices) = load("").unwrap();
        assert!(!server.is_served(false) && notices.is_empty(), "{notices:?}");
        let both = "authentication: {x509: {clientCAFile: /ca.crt}}\n\
                    authorization: {mode: AlwaysAllow}";
        let (server, notices) = load(both).unwrap();
        assert!(server.is_served(false) && notices.is_empty(), "{notices:?}");
        for fields in [
            "authentication: {x509: {clientCAFile: /ca.crt}}",
            "authorization: {mode: AlwaysAllow}",
            "authentication: {x509: {clientCAFile: /ca.crt}, anonymous: {enabled: true}}\n\
             authorization: {mode: AlwaysAllow}",
            "address: 127.0.0.1",
            "authorization: {webhook: {cacheAuthorizedTTL: 1m}}",
            "streamingConnectionIdleTimeout: 1h",
            "enableDebuggingHandlers: false",
            "enableSystemLogQuery: true",
        ] {
            let (server, notices) = load(fields).unwrap();
            assert!(!server.is_served(false), "{fields}");
            assert!(notices[0].contains("the HTTPS API is not served"), "{fields}: {notices:?}");
        }
        let (server, notices) = load(&format!("enableServer: false\n{both}")).unwrap();
        assert!(!server.is_served(false) && notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn in_a_cluster_everybody_is_never_let_in() {
        let mut server = ServerConfig::default();
        assert_eq!(server.off_because(true), None);
        server.anonymous = true;
        assert_eq!(server.off_because(true), None, "the API server is asked about them");
        server.authorization = Authorization::AlwaysAllow;
        assert!(server.off_because(true).unwrap().contains("anybody"));
        server.anonymous = false;
        assert_eq!(server.off_because(true), None);
        server.tokens = false;
        assert!(server.off_because(true).unwrap().contains("nobody"));
        server.client_ca = Some("/ca.crt".into());
        assert_eq!(server.off_because(true), None);
    }

    #[test]
    fn logs_of_the_system_are_off_by_default() {
        for (fields, expected) in [
            ("", SystemLogs::Off),
            ("enableSystemLogHandler: true", SystemLogs::Files),
            ("enableSystemLogQuery: true", SystemLogs::FilesAndServices),
            ("enableSystemLogHandler: false", SystemLogs::Off),
        ] {
            assert_eq!(load(fields).unwrap().0.system_logs, expected, "{fields}");
        }
        let both = load("enableSystemLogHandler: false\nenableSystemLogQuery: true").unwrap_err();
        assert!(both.contains("enableSystemLogHandler must not be false then"), "{both}");
    }

    #[test]
    fn tls_is_checked() {
        let (server, notices) = load(
            "tlsMinVersion: VersionTLS10\n\
             tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA, TLS_AES_128_GCM_SHA256, \
             TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305]",
        )
        .unwrap();
        assert_eq!(server.tls12_suites, ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]);
        assert!(!server.tls13_only);
        assert!(notices.iter().any(|n| n.contains("raised to VersionTLS12")), "{notices:?}");
        assert!(
            notices.iter().any(|n| n.contains("tlsCipherSuites[0]: not acted on")),
            "{notices:?}"
        );
        assert!(load("tlsMinVersion: VersionTLS13").unwrap().0.tls13_only);
        for (fields, error) in [
            ("tlsMinVersion: TLS1.2", "must be VersionTLS12 or VersionTLS13"),
            ("tlsCipherSuites: [TLS_RSA_WITH_AES_128_CBC_SHA]", "must name at least one of"),
            ("tlsCertFile: /tls.crt", "tlsCertFile: Required value: needs tlsPrivateKeyFile, too"),
            ("tlsPrivateKeyFile: /tls.key", "needs tlsCertFile, too"),
            ("authorization: {mode: RBAC}", "must be Webhook or AlwaysAllow"),
            ("address: localhost", "must be an IP address"),
            ("port: 70000", "must be between 1 and 65535"),
        ] {
            let found = load(fields).unwrap_err();
            assert!(found.contains(error), "{fields}: {found}");
        }
    }
}
