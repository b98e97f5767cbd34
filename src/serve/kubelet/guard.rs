//! Lets requests to the HTTPS API in: who is it, and may they do that?
//!
//! ```text
//!  request ─► client certificate? ─► bearer token? ─► nobody ─► anonymous, where that is allowed
//!                  │ wrong               │ unknown        └────► 401
//!                  └─────────────────────┴─ 401 unless another proof is good
//!             user ─► AlwaysAllow, or the API server allows one of the subresources ─► the routes
//!                                        └── 403; not answered: 500
//!             AlwaysAllow without an API server, for a page of another web site: 403
//! ```
//!
//! Nothing of a request is acted on before that, not even its path is looked up.

use super::{
    access::{Access, Subresources},
    cache::Cache,
    tls::Keys,
    user,
};
use crate::{
    clock,
    serve::{connections::Peer, requests::ConnectionRequests},
};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec},
};
use sha2::{Digest as _, Sha256};
use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// The most answers about tokens that are kept, and the most about permissions.
const MOST: usize = 1024;

/// The most questions that the API server is asked at a time. More of them wait, so that a flood of
/// requests is not passed on, and the agent's own requests are not delayed.
const ASKED_AT_A_TIME: usize = 16;

/// Why the API server did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotReviewed(pub String);

/// A question that the API server answers.
pub type Asked<T> = Pin<Box<dyn Future<Output = Result<T, NotReviewed>> + Send>>;

/// What the API server is asked about requests.
pub struct Reviews {
    /// Who has this bearer token (TokenReview); `None`: nobody.
    pub token: Box<dyn Fn(String) -> Asked<Option<UserInfo>> + Send + Sync>,
    /// Whether that is allowed (SubjectAccessReview).
    pub access: Box<dyn Fn(SubjectAccessReviewSpec) -> Asked<bool> + Send + Sync>,
}

impl std::fmt::Debug for Reviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviews").finish_non_exhaustive()
    }
}

/// Who decides what users may do.
#[derive(Debug)]
pub enum Permissions {
    /// Every user who is known may do everything.
    All,
    /// The API server.
    Ask(Arc<Reviews>),
}

/// Who may do what.
#[derive(Debug)]
pub struct GuardSettings {
    pub node_name: String,
    /// Asks the API server who has a bearer token; `None`: tokens prove nothing.
    pub tokens: Option<Arc<Reviews>>,
    pub permissions: Permissions,
    /// Whether somebody without credentials is the user `system:anonymous`.
    pub anonymous: bool,
    pub token_ttl: Duration,
    pub allowed_ttl: Duration,
    pub denied_ttl: Duration,
}

/// Decides about requests, and remembers the answers of the API server.
#[derive(Debug)]
pub(super) struct Guard {
    settings: GuardSettings,
    keys: Arc<Keys>,
    turns: Semaphore,
    users: Mutex<Cache<Option<UserInfo>>>,
    permissions: Mutex<Cache<bool>>,
}

/// Why a request is not let in.
#[derive(Debug, PartialEq, Eq)]
enum Rejection {
    Unauthorized,
    Forbidden(String),
    /// The API server did not answer.
    NotDecided(String),
}

impl Guard {
    pub(super) fn new(settings: GuardSettings, keys: Arc<Keys>) -> Self {
        let (users, permissions) = (Mutex::new(Cache::new(MOST)), Mutex::new(Cache::new(MOST)));
        Self { settings, keys, turns: Semaphore::new(ASKED_AT_A_TIME), users, permissions }
    }

    async fn user(&self, request: &Parts) -> Result<UserInfo, Rejection> {
        let mut wrong = false;
        if let Some(certificates) = &request.certificates {
            match self.keys.verified(certificates).await.and_then(|der| user::of_certificate(&der))
            {
                Some(user) => return Ok(user::authenticated(user)),
                None => wrong = true,
            }
        }
        if let (Some(token), Some(reviews)) = (&request.token, &self.settings.tokens) {
            match self.of_token(token, reviews).await {
                Some(user) => return Ok(user::authenticated(user)),
                None => wrong = true,
            }
        }
        if wrong || !self.settings.anonymous {
            return Err(Rejection::Unauthorized);
        }
        Ok(user::anonymous())
    }

    /// `None` also when the API server does not answer.
    async fn of_token(&self, token: &str, reviews: &Reviews) -> Option<UserInfo> {
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = lock(&self.users).get(&key, clock::now().boot) {
            return known;
        }
        let turn = self.turns.acquire().await;
        let answer = (reviews.token)(token.to_owned()).await;
        drop(turn);
        match answer {
            Ok(user) => {
                let now = clock::now().boot;
                lock(&self.users).put(key, user.clone(), now + self.settings.token_ttl, now);
                user
            }
            Err(err) => {
                tracing::warn!(%err, "cannot ask the API server who has a token");
                None
            }
        }
    }

    async fn permit(&self, user: &UserInfo, access: Access) -> Result<(), Rejection> {
        let Permissions::Ask(reviews) = &self.settings.permissions else { return Ok(()) };
        let name = user.username.as_deref().unwrap_or_default();
        let (named, enough) = match access.subresources {
            Subresources::Any(named) => (named, true),
            Subresources::All(named) => (named, false),
        };
        // The first answer that decides: an allowed one where one is enough, else a denied one.
        let mut allowed = !enough;
        for subresource in named {
            let spec = self.question(user, access.verb, subresource);
            allowed = self.allows(spec, reviews).await.map_err(|err| {
                tracing::warn!(%err, "cannot ask the API server what a user may do");
                Rejection::NotDecided(format!(
                    "Authorization error (user={name}, verb={}, resource=nodes, subresource={subresource})",
                    access.verb
                ))
            })?;
            if allowed == enough {
                break;
            }
        }
        if allowed {
            return Ok(());
        }
        Err(Rejection::Forbidden(format!(
            "Forbidden (user={name}, verb={}, resource=nodes, subresource(s)=[{}])",
            access.verb,
            named.join(" ")
        )))
    }

    /// Refuses a request that a browser sends for a page of another web site. The browser proves
    /// the identity of its user with a client certificate, whichever page sends the request. An API
    /// server passes on the `Origin` of its own clients, so nothing is refused where it takes part.
    fn refuse_foreign_origin(&self, request: &Request) -> Option<Rejection> {
        let GuardSettings { permissions: Permissions::All, tokens: None, .. } = &self.settings
        else {
            return None;
        };
        let origin = request.headers().get(header::ORIGIN)?.as_bytes();
        let host = match request.uri().authority() {
            Some(authority) => authority.as_str().as_bytes(),
            None => request.headers().get(header::HOST).map_or(&b""[..], HeaderValue::as_bytes),
        };
        let own = [b"https://", host].concat();
        let text = "requests of other web sites are refused";
        (!origin.eq_ignore_ascii_case(&own)).then(|| Rejection::Forbidden(text.to_owned()))
    }

    async fn allows(
        &self,
        spec: SubjectAccessReviewSpec,
        reviews: &Reviews,
    ) -> Result<bool, NotReviewed> {
        let text = serde_json::to_vec(&spec).map_err(|error| NotReviewed(error.to_string()))?;
        let key: [u8; 32] = Sha256::digest(text).into();
        if let Some(known) = lock(&self.permissions).get(&key, clock::now().boot) {
            return Ok(known);
        }
        let turn = self.turns.acquire().await;
        let allowed = (reviews.access)(spec).await?;
        drop(turn);
        let now = clock::now().boot;
        let settings = &self.settings;
        let ttl = if allowed { settings.allowed_ttl } else { settings.denied_ttl };
        lock(&self.permissions).put(key, allowed, now + ttl, now);
        Ok(allowed)
    }

    fn question(&self, user: &UserInfo, verb: &str, subresource: &str) -> SubjectAccessReviewSpec {
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("nodes".to_owned()),
            subresource: Some(subresource.to_owned()),
            name: Some(self.settings.node_name.clone()),
            ..ResourceAttributes::default()
        };
        SubjectAccessReviewSpec {
            user: user.username.clone(),
            uid: user.uid.clone(),
            groups: user.groups.clone(),
            extra: user.extra.clone(),
            resource_attributes: Some(attributes),
            non_resource_attributes: None,
        }
    }
}

/// What of a request tells who sends it.
struct Parts {
    certificates: Option<Arc<Peer>>,
    token: Option<String>,
}

/// Lets a request through to the routes, or answers it.
pub(super) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let parts = Parts {
        certificates: request.extensions().get::<Arc<Peer>>().filter(|p| !p.0.is_empty()).cloned(),
        token: user::token(request.headers()),
    };
    let access = Access::of(request.method(), request.uri().path());
    let refusal = match guard.user(&parts).await {
        Ok(user) => guard.permit(&user, access).await.err(),
        Err(refusal) => Some(refusal),
    };
    let refusal = refusal.or_else(|| guard.refuse_foreign_origin(&request));
    match refusal {
        None => {
            if let Some(requests) = request.extensions().get::<Arc<ConnectionRequests>>() {
                requests.let_in();
            }
            next.run(request).await
        }
        Some(refusal) => answer(refusal),
    }
}

/// A refusal ends the connection: nobody holds a place without a permission.
fn answer(refusal: Rejection) -> Response {
    let (status, text) = match refusal {
        Rejection::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()),
        Rejection::Forbidden(text) => (StatusCode::FORBIDDEN, text),
        Rejection::NotDecided(text) => (StatusCode::INTERNAL_SERVER_ERROR, text),
    };
    let mut response = crate::serve::health::plain((status, text)).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn lock<T>(cache: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A map without invariants of its own stays usable after a panic.
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::serve::http2::tests;
    use axum::{Router, routing::get};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An API server that knows the token `good` of jane, who may get `nodes/metrics`, and does
    /// not answer about the token `late` and the verb `update`.
    fn reviews(count: &Arc<AtomicUsize>) -> Arc<Reviews> {
        let (of_tokens, of_access) = (Arc::clone(count), Arc::clone(count));
        Arc::new(Reviews {
            token: Box::new(move |token| {
                of_tokens.fetch_add(1, Ordering::Relaxed);
                let user = UserInfo { username: Some("jane".to_owned()), ..UserInfo::default() };
                let answer = match token.as_str() {
                    "late" => Err(NotReviewed("no answer".to_owned())),
                    "good" => Ok(Some(user)),
                    _ => Ok(None),
                };
                Box::pin(async { answer })
            }),
            access: Box::new(move |spec| {
                of_access.fetch_add(1, Ordering::Relaxed);
                let asked = spec.resource_attributes.unwrap();
                let verb = asked.verb.unwrap();
                assert_eq!(asked.resource.as_deref(), Some("nodes"));
                assert_eq!(asked.name.as_deref(), Some("n1"));
                let allowed = spec.user.as_deref() == Some("jane")
                    && spec.groups.unwrap().contains(&"system:authenticated".to_owned())
                    && (verb.as_str(), asked.subresource.as_deref()) == ("get", Some("metrics"));
                let refused = verb == "update";
                let answer = if refused { Err(NotReviewed("no".to_owned())) } else { Ok(allowed) };
                Box::pin(async move { answer })
            }),
        })
    }

    fn guard(count: &Arc<AtomicUsize>, anonymous: bool) -> Guard {
        let reviews = reviews(count);
        let settings = GuardSettings {
            node_name: "n1".to_owned(),
            tokens: Some(Arc::clone(&reviews)),
            permissions: Permissions::Ask(reviews),
            anonymous,
            token_ttl: Duration::from_secs(60),
            allowed_ttl: Duration::from_secs(60),
            denied_ttl: Duration::ZERO,
        };
        Guard::new(settings, Arc::new(Keys::without_authorities()))
    }

    #[tokio::test]
    async fn pages_of_other_web_sites_are_refused_where_all_is_allowed() {
        let ask = async |permissions, tokens, origin: Option<&'static str>| {
            let mut guard = guard(&Arc::default(), true);
            (guard.settings.permissions, guard.settings.tokens) = (permissions, tokens);
            let router = Router::new().route("/pods", get("none"));
            let router = crate::serve::kubelet::routes::guarded(router, Arc::new(guard));
            let (mut rig, near) = tests::serve(router, crate::serve::kubelet::POLICY);
            let mut sender = tests::connect(&mut rig, near, 1 << 16).await;
            let mut request = tests::request("/pods");
            if let Some(origin) = origin {
                request.headers_mut().insert(header::ORIGIN, HeaderValue::from_static(origin));
            }
            let answer = sender.send_request(request).await.unwrap();
            (answer.status().as_u16(), tests::text(answer).await)
        };
        for origin in [None, Some("https://node"), Some("HTTPS://Node")] {
            assert_eq!(ask(Permissions::All, None, origin).await.0, 200, "{origin:?}");
        }
        for origin in ["https://evil.example", "http://node", "https://node:444", "null"] {
            let (status, text) = ask(Permissions::All, None, Some(origin)).await;
            assert_eq!(status, 403, "{origin}");
            assert_eq!(text.trim_end(), "requests of other web sites are refused");
        }
        let (reviews, evil) = (reviews(&Arc::default()), Some("https://evil.example"));
        let (_, text) = ask(Permissions::Ask(Arc::clone(&reviews)), None, evil).await;
        assert!(text.starts_with("Forbidden (user=system:anonymous"), "{text}");
        assert_eq!(ask(Permissions::All, Some(reviews), evil).await.0, 200);
    }

    fn with(token: Option<&str>) -> Parts {
        Parts { certificates: None, token: token.map(ToOwned::to_owned) }
    }

    #[tokio::test]
    async fn only_a_known_token_makes_a_user() {
        let count = Arc::default();
        let guard = guard(&count, false);
        for token in [None, Some("bad"), Some("late")] {
            let user = guard.user(&with(token)).await;
            assert_eq!(user, Err(Rejection::Unauthorized), "{token:?}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
        for _ in 0..2 {
            let user = guard.user(&with(Some("good"))).await.unwrap();
            assert_eq!(user.username.as_deref(), Some("jane"));
            assert_eq!(guard.user(&with(Some("bad"))).await, Err(Rejection::Unauthorized));
        }
        assert_eq!(count.load(Ordering::Relaxed), 3, "answers are kept");
        assert_eq!(guard.user(&with(Some("late"))).await, Err(Rejection::Unauthorized));
        assert_eq!(count.load(Ordering::Relaxed), 4, "a failure is not kept");
    }

    #[tokio::test]
    async fn requests_of_one_http2_connection_are_judged_one_by_one() {
        let guard = guard(&Arc::default(), false);
        let router = Router::new().route("/metrics", get("7")).route("/pods", get("none"));
        let router = crate::serve::kubelet::routes::guarded(router, Arc::new(guard));
        let (mut rig, near) = tests::serve(router, crate::serve::kubelet::POLICY);
        let mut sender = tests::connect(&mut rig, near, 1 << 16).await;
        let mut asks = async |path, token: &str| {
            let mut request = tests::request(path);
            let proof = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert(header::AUTHORIZATION, proof);
            let answer = sender.send_request(request).await;
            answer.map(|answer| answer.status().as_u16()).map_err(|error| error.to_string())
        };
        assert_eq!(asks("/metrics", "good").await, Ok(200));
        assert_eq!(asks("/metrics", "good").await, Ok(200));
        assert_eq!(asks("/pods", "good").await, Ok(403));
        assert!(asks("/metrics", "good").await.is_err(), "the connection goes on");
    }

    #[tokio::test]
    async fn a_wrong_token_is_not_anonymous() {
        let count = Arc::default();
        let guard = guard(&count, true);
        let nobody = guard.user(&with(None)).await.unwrap();
        assert_eq!(nobody.username.as_deref(), Some("system:anonymous"));
        assert_eq!(nobody.groups.unwrap(), ["system:unauthenticated"]);
        assert_eq!(guard.user(&with(Some("bad"))).await, Err(Rejection::Unauthorized));
    }

    #[tokio::test]
    async fn a_user_may_do_what_the_api_server_allows() {
        let count = Arc::default();
        let guard = guard(&count, false);
        let user = guard.user(&with(Some("good"))).await.unwrap();
        let access = |verb, any| Access { verb, subresources: Subresources::Any(any) };
        assert_eq!(guard.permit(&user, access("get", &["pods", "metrics"])).await, Ok(()));
        let refused = guard.permit(&user, access("get", &["pods", "proxy"])).await;
        let text = "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])";
        assert_eq!(refused, Err(Rejection::Forbidden(text.to_owned())));
        let late = guard.permit(&user, access("update", &["metrics"])).await;
        assert!(matches!(late, Err(Rejection::NotDecided(_))), "{late:?}");
        let asked = count.load(Ordering::Relaxed);
        assert_eq!(guard.permit(&user, access("get", &["metrics"])).await, Ok(()));
        assert_eq!(count.load(Ordering::Relaxed), asked, "a permission is kept");
        let all = |all| Access { verb: "get", subresources: Subresources::All(all) };
        assert_eq!(guard.permit(&user, all(&["metrics"])).await, Ok(()));
        for one_missing in [&["metrics", "stats"], &["stats", "metrics"]] {
            let refused = guard.permit(&user, all(one_missing)).await;
            assert!(matches!(refused, Err(Rejection::Forbidden(_))), "{refused:?}");
        }
    }
}
