//! Connects the HTTPS API with the API server that it asks about its clients.

use crate::{
    api::{Link, review_access, review_token, serving_certificate},
    config::{Authorization, Config},
    machine::NodeIps,
    serve::{GuardSettings, KubeletApi, NotReviewed, Permissions, Reviews, TlsSettings},
};
use std::sync::Arc;
use tokio::sync::watch;

/// The HTTPS API; `None` where it is not served. `link` is the way to the API server, where there
/// is one.
pub(super) fn kubelet_api(
    config: &Config,
    node_name: &str,
    node_ips: watch::Receiver<NodeIps>,
    link: Option<watch::Receiver<Link>>,
) -> Option<KubeletApi> {
    let server = config.server.clone();
    if !server.is_served(link.is_some()) {
        return None;
    }
    let reviews = link.map(|link| Arc::new(reviews(link)));
    let asks = server.authorization == Authorization::Webhook;
    let requested = server.bootstrap.then(|| {
        let both = serving_certificate(&config.certificate_dir());
        (both.clone(), both)
    });
    Some(KubeletApi {
        address: server.address,
        tls: TlsSettings {
            certificate: server.certificate.or(requested),
            directory: config.certificate_dir(),
            client_ca: server.client_ca,
            tls13_only: server.tls13_only,
            tls12_suites: server.tls12_suites,
            node_name: node_name.to_owned(),
            node_ips,
        },
        guard: GuardSettings {
            node_name: node_name.to_owned(),
            tokens: reviews.clone().filter(|_| server.tokens),
            permissions: if asks { Permissions::Ask(reviews?) } else { Permissions::All },
            anonymous: server.anonymous,
            token_ttl: server.token_ttl,
            allowed_ttl: server.allowed_ttl,
            denied_ttl: server.denied_ttl,
        },
        debugging_handlers: server.debugging_handlers,
        system_logs: server.system_logs,
        flags: config.flags.clone(),
    })
}

fn reviews(link: watch::Receiver<Link>) -> Reviews {
    let of_access = link.clone();
    Reviews {
        token: Box::new(move |token| {
            let asked = review_token(link.borrow().clone(), token);
            Box::pin(async { asked.await.map_err(|error| NotReviewed(error.to_string())) })
        }),
        access: Box::new(move |spec| {
            let asked = review_access(of_access.borrow().clone(), spec);
            Box::pin(async { asked.await.map_err(|error| NotReviewed(error.to_string())) })
        }),
    }
}
