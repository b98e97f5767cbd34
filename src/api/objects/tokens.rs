//! Service account tokens: how one is requested, and when again.
//!
//! A token is requested again at 80 % of its lifetime, or after a day. Lifetimes are measured in
//! boot time, from the moment of the answer. So a wrong wall clock of the node does not matter, and
//! the time while the machine is suspended counts. An expired token stays in use until a new one is
//! issued. A restart of the agent requests all tokens again.

use super::{
    super::ApiError,
    is_object_name,
    requests::{RequestKey, RequestOutcome, Requests},
};
use crate::model::{PodUid, ServiceAccountToken, TokenAnswer, TokenKey};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// A token is replaced after this long at the latest.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// A token is never replaced earlier than this, for any lifetime that the API server reports.
const SHORTEST: Duration = Duration::from_secs(1);
/// Renewals are spread over this time, so that pods that started together do not renew together.
pub(super) const SPREAD: Duration = Duration::from_secs(10);

/// The pod to which a token is bound. Its uid is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) namespace: Arc<str>,
    pub(super) pod: Arc<str>,
}

/// The parts of a `TokenRequest` that are read. It has no `Debug`, because it holds a token.
#[derive(Deserialize)]
pub(super) struct Sent {
    #[serde(default)]
    spec: SentSpec,
    status: SentStatus,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SentSpec {
    expiration_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct SentStatus {
    token: String,
}

/// All tokens of the node's pods.
pub(super) type Tokens = Requests<TokenKey, Bound, ServiceAccountToken>;

impl RequestKey for TokenKey {
    fn pod(&self) -> &PodUid {
        &self.pod
    }
}

/// The answer that is published.
pub(super) fn answer(issued: Result<&ServiceAccountToken, &str>) -> TokenAnswer {
    match issued {
        Ok(token) => TokenAnswer::Issued(token.clone()),
        Err(why) => TokenAnswer::Refused(why.into()),
    }
}

/// The outcome for an answer of the API server. `spread` is a random time below [`SPREAD`].
pub(super) fn outcome(
    answer: Result<Sent, ApiError>,
    key: &TokenKey,
    spread: Duration,
) -> RequestOutcome<ServiceAccountToken> {
    match answer {
        Ok(sent) if sent.status.token.is_empty() => {
            RequestOutcome::Failed("the answer has no token".to_owned())
        }
        Ok(sent) => {
            // The API server may grant a shorter lifetime than the requested one.
            let seconds = sent.spec.expiration_seconds.unwrap_or(key.expiration_seconds);
            let lifetime = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            RequestOutcome::Answered {
                value: ServiceAccountToken::new(&sent.status.token),
                again_after: Some(renewal_after(lifetime, spread)),
            }
        }
        Err(error) => error.into(),
    }
}

/// The outcome for a name that no service account can have.
pub(super) fn impossible() -> RequestOutcome<ServiceAccountToken> {
    let why = "the pod has no valid service account name".to_owned();
    RequestOutcome::Refused { why, is_forbidden: false }
}

/// How long a token is used: until a fifth of its lifetime is left, and at most for a day.
fn renewal_after(lifetime: Duration, spread: Duration) -> Duration {
    let due = (lifetime / 5).saturating_mul(4).min(LONGEST);
    // Short lifetimes get a smaller spread.
    due.saturating_sub(spread.min(due / 10)).max(SHORTEST)
}

/// The path of a request; `None` for a name that no service account can have.
pub(super) fn path(key: &TokenKey, bound: &Bound) -> Option<String> {
    let (namespace, account) = (&bound.namespace, &key.service_account);
    let is_valid = is_object_name(namespace) && is_object_name(account);
    is_valid.then(|| format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"))
}

/// The body of a request.
pub(super) fn request(key: &TokenKey, bound: &Bound) -> Value {
    let audience = Some(&key.audience).filter(|audience| !audience.is_empty());
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audience.into_iter().collect::<Vec<_>>(),
            "expirationSeconds": key.expiration_seconds,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": bound.pod,
                "uid": key.pod,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::{
        super::{
            super::{MAX_PAUSE, MAX_REFUSAL_PAUSE},
            AUTHORIZER_LAG,
        },
        *,
    };
    use std::collections::BTreeMap;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    fn key(pod: &str) -> TokenKey {
        TokenKey {
            pod: pod.into(),
            service_account: "web".into(),
            audience: "".into(),
            expiration_seconds: 3600,
        }
    }

    fn wanted(pods: &[&str]) -> BTreeMap<TokenKey, Bound> {
        let bound = Bound { namespace: "ns".into(), pod: "web".into() };
        pods.iter().map(|pod| (key(pod), bound.clone())).collect()
    }

    fn issued(text: &str) -> RequestOutcome<ServiceAccountToken> {
        let again_after = Some(renewal_after(HOUR, Duration::ZERO));
        RequestOutcome::Answered { value: ServiceAccountToken::new(text), again_after }
    }

    fn refused(is_forbidden: bool) -> RequestOutcome<ServiceAccountToken> {
        RequestOutcome::Refused { why: "no".to_owned(), is_forbidden }
    }

    /// What pod `a` gets: the token, the words of a refusal, or nothing yet.
    fn answer_of_a(tokens: &Tokens, now: Duration) -> Option<String> {
        Some(match tokens.answers(now, answer).remove(&key("a"))? {
            TokenAnswer::Issued(token) => {
                String::from_utf8(token.content().as_bytes().to_vec()).unwrap()
            }
            TokenAnswer::Refused(why) => format!("refused: {why}"),
        })
    }

    #[test]
    fn a_token_is_renewed_at_80_percent_or_after_a_day() {
        let day = HOUR * 24;
        for (lifetime, spread, expected) in [
            (HOUR, Duration::ZERO, MINUTE * 48),
            (HOUR, SPREAD, MINUTE * 48 - SPREAD),
            (MINUTE * 10, Duration::ZERO, MINUTE * 8),
            (day * 365, Duration::ZERO, day),
            (day, Duration::ZERO, day / 5 * 4),
            (Duration::MAX, Duration::ZERO, day),
            (Duration::from_secs(50), SPREAD, Duration::from_secs(36)),
            (Duration::ZERO, SPREAD, SHORTEST),
        ] {
            assert_eq!(renewal_after(lifetime, spread), expected, "{lifetime:?} {spread:?}");
        }
    }

    #[test]
    fn a_token_is_requested_at_once_and_again_when_it_is_due() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        assert_eq!(tokens.next(HOUR).unwrap().0, key("a"));
        assert!(tokens.next(HOUR).is_none(), "it is under way");
        assert_eq!(answer_of_a(&tokens, HOUR), None, "it is not known yet");
        tokens.settle(&key("a"), issued("one"), HOUR);
        assert_eq!(answer_of_a(&tokens, HOUR).unwrap(), "one");
        let due = HOUR + MINUTE * 48;
        assert_eq!(tokens.wake_at(), Some(due));
        assert!(tokens.next(due - MINUTE).is_none());
        tokens.next(due).unwrap();
        tokens.settle(&key("a"), issued("two"), due);
        assert_eq!(answer_of_a(&tokens, due).unwrap(), "two");
    }

    #[test]
    fn an_expired_token_stays_until_a_new_one_comes() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        tokens.next(HOUR).unwrap();
        tokens.settle(&key("a"), issued("one"), HOUR);
        let later = HOUR * 9;
        for issuing in [RequestOutcome::Failed("away".to_owned()), refused(false)] {
            tokens.hurry(later);
            tokens.next(later).unwrap();
            tokens.settle(&key("a"), issuing, later);
            assert_eq!(answer_of_a(&tokens, later).unwrap(), "one");
        }
        assert!(tokens.wake_at().unwrap() <= later + MAX_PAUSE);
    }

    #[test]
    fn a_refusal_is_told_and_an_absence_is_not() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        let settle = |tokens: &mut Tokens, issuing, now| {
            tokens.hurry(now);
            tokens.next(now).unwrap();
            tokens.settle(&key("a"), issuing, now);
            answer_of_a(tokens, now)
        };
        assert_eq!(settle(&mut tokens, RequestOutcome::Failed("away".to_owned()), HOUR), None);
        let told = Some("refused: no".to_owned());
        assert_eq!(settle(&mut tokens, refused(false), HOUR), told);
        assert_eq!(settle(&mut tokens, RequestOutcome::Failed("away".to_owned()), HOUR), None);
        assert_eq!(settle(&mut tokens, refused(true), HOUR), None, "the pod may be new there");
        assert_eq!(settle(&mut tokens, refused(true), HOUR + AUTHORIZER_LAG), told);
        assert_eq!(settle(&mut tokens, issued("one"), HOUR + MINUTE).unwrap(), "one");
    }

    #[test]
    fn a_refused_token_is_requested_less_and_less_often() {
        for (is_refused, longest) in [(true, MAX_REFUSAL_PAUSE), (false, MAX_PAUSE)] {
            let (mut tokens, mut now) = (Tokens::default(), HOUR);
            tokens.want(wanted(&["a"]), now);
            let mut pauses = Vec::new();
            for _ in 0..20 {
                tokens.next(now).unwrap();
                let failed = || RequestOutcome::Failed("away".to_owned());
                tokens.settle(&key("a"), if is_refused { refused(false) } else { failed() }, now);
                let due = tokens.wake_at().unwrap();
                pauses.push(due - now);
                now = due;
            }
            assert!(pauses[0] <= Duration::from_millis(100), "{pauses:?}");
            assert!(pauses[19] <= longest && pauses[19] >= longest * 3 / 4, "{pauses:?}");
        }
    }

    #[test]
    fn the_first_refusal_after_an_absence_is_soon_asked_for_again() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        for _ in 0..10 {
            tokens.hurry(HOUR);
            tokens.next(HOUR).unwrap();
            tokens.settle(&key("a"), RequestOutcome::Failed("away".to_owned()), HOUR);
        }
        tokens.hurry(HOUR);
        tokens.next(HOUR).unwrap();
        tokens.settle(&key("a"), refused(true), HOUR);
        assert!(tokens.wake_at().unwrap() <= HOUR + Duration::from_millis(100));
    }

    #[test]
    fn tokens_of_a_pod_that_is_gone_are_dropped() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a", "b"]), HOUR);
        tokens.next(HOUR).unwrap();
        tokens.want(wanted(&["b"]), HOUR);
        tokens.settle(&key("a"), issued("one"), HOUR);
        assert!(tokens.answers(HOUR, answer).is_empty());
        assert_eq!(tokens.next(HOUR).unwrap().0, key("b"));
    }

    #[test]
    fn pods_without_a_token_come_first() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        tokens.next(HOUR).unwrap();
        tokens.settle(&key("a"), issued("one"), HOUR);
        let later = HOUR * 2;
        tokens.want(wanted(&["a", "b"]), later);
        assert_eq!(tokens.next(later).unwrap().0, key("b"));
        assert_eq!(tokens.next(later).unwrap().0, key("a"));
    }

    #[test]
    fn a_request_binds_the_token_to_the_pod() {
        let bound = Bound { namespace: "ns".into(), pod: "web".into() };
        let body = request(&key("u1"), &bound);
        assert_eq!(body["spec"]["audiences"], json!([]));
        assert_eq!(body["spec"]["expirationSeconds"], 3600);
        assert_eq!(
            body["spec"]["boundObjectRef"],
            json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"})
        );
        let audience = TokenKey { audience: "vault".into(), ..key("u1") };
        assert_eq!(request(&audience, &bound)["spec"]["audiences"], json!(["vault"]));
        let expected = "/api/v1/namespaces/ns/serviceaccounts/web/token";
        assert_eq!(path(&audience, &bound).as_deref(), Some(expected));
        let account = TokenKey { service_account: "../x".into(), ..key("u1") };
        assert_eq!(path(&account, &bound), None);
    }
}
