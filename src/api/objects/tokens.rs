//! Service account tokens: when each one is requested, and the last answer for it.
//!
//! ```text
//!  wanted ─► due ─► requested ─┬─► issued ─► due again at 80 % of its lifetime, or after a day
//!             ▲                └─► failed ─► due after a pause
//!             └──────────────────────────────────┘
//! ```
//!
//! Lifetimes are measured in boot time, from the moment of the answer. So a wrong wall clock of the
//! node does not matter, and the time while the machine is suspended counts. An expired token stays
//! in use until a new one is issued. A restart of the agent requests all tokens again.

use super::{
    super::{ApiError, Pause},
    AUTHORIZER_LAG, is_object_name,
};
use crate::model::{ServiceAccountToken, TokenAnswer, TokenKey};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

/// A token is replaced after this long at the latest.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// A token is never replaced earlier than this, for any lifetime that the API server reports.
const SHORTEST: Duration = Duration::from_secs(1);
/// Renewals are spread over this time, so that pods that started together do not renew together.
pub(super) const SPREAD: Duration = Duration::from_secs(10);

/// The pod to which a token is bound. Its uid is in the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) namespace: Box<str>,
    pub(super) pod: Box<str>,
}

/// The outcome of a request.
pub(super) enum Issuing {
    Issued {
        token: ServiceAccountToken,
        lifetime: Duration,
    },
    Refused {
        why: String,
        /// The authorizer may not know the pod yet.
        is_forbidden: bool,
    },
    /// The API server is away or has a problem of its own.
    Failed(String),
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
#[derive(Default)]
pub(super) struct Tokens(BTreeMap<TokenKey, Token>);

struct Token {
    bound: Bound,
    issued: Option<ServiceAccountToken>,
    trouble: Option<TokenTrouble>,
    turn: TokenTurn,
    pause: Pause,
}

/// Why the last request failed.
struct TokenTrouble {
    why: String,
    /// The boot time from which it is published; `None` while the API server is away.
    told_from: Option<Duration>,
}

enum TokenTurn {
    /// A request is due at this boot time.
    DueAt(Duration),
    /// A request is under way.
    Busy,
}

impl Tokens {
    /// Keeps these tokens and no others. New ones are due at once.
    pub(super) fn want(&mut self, wanted: BTreeMap<TokenKey, Bound>, now: Duration) {
        self.0.retain(|key, _| wanted.contains_key(key));
        for (key, bound) in wanted {
            self.0.entry(key).or_insert_with(|| Token {
                bound,
                issued: None,
                trouble: None,
                turn: TokenTurn::DueAt(now),
                pause: Pause::default(),
            });
        }
    }

    /// The next request that is due, and marks it as being under way. Pods without a token come
    /// first.
    pub(super) fn next(&mut self, now: Duration) -> Option<(TokenKey, Bound)> {
        let due = self.0.iter_mut().filter(|(_, token)| match token.turn {
            TokenTurn::DueAt(at) => at <= now,
            TokenTurn::Busy => false,
        });
        let (key, token) = due.min_by_key(|(_, token)| token.issued.is_some())?;
        token.turn = TokenTurn::Busy;
        Some((key.clone(), token.bound.clone()))
    }

    /// Records the outcome of a request. `spread` is a random time below [`SPREAD`].
    pub(super) fn settle(
        &mut self,
        key: &TokenKey,
        issuing: Issuing,
        now: Duration,
        spread: Duration,
    ) {
        // The pod may have been removed in the meantime.
        let Some(token) = self.0.get_mut(key) else { return };
        let trouble = match issuing {
            Issuing::Issued { token: issued, lifetime } => {
                token.issued = Some(issued);
                token.trouble = None;
                token.pause.reset();
                token.turn = TokenTurn::DueAt(now + renewal_after(lifetime, spread));
                return;
            }
            Issuing::Refused { why, is_forbidden } => {
                let before = token.trouble.as_ref().and_then(|trouble| trouble.told_from);
                let patience = if is_forbidden { AUTHORIZER_LAG } else { Duration::ZERO };
                let told_from = before.unwrap_or(now + patience);
                TokenTrouble { why, told_from: Some(told_from) }
            }
            Issuing::Failed(why) => TokenTrouble { why, told_from: None },
        };
        if token.trouble.as_ref().is_none_or(|before| before.why != trouble.why) {
            tracing::warn!(uid = %key.pod, service_account = %key.service_account, err = trouble.why, "cannot fetch a token");
        }
        token.trouble = Some(trouble);
        token.turn = TokenTurn::DueAt(now + token.pause.after_failure());
    }

    /// Makes failed requests due at once, because the connection to the API server is a new one.
    pub(super) fn hurry(&mut self, now: Duration) {
        for token in self.0.values_mut().filter(|token| token.trouble.is_some()) {
            match token.turn {
                TokenTurn::DueAt(_) => token.turn = TokenTurn::DueAt(now),
                TokenTurn::Busy => {}
            }
        }
    }

    /// The boot time at which the next request is due.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let due = |token: &Token| match token.turn {
            TokenTurn::DueAt(at) => Some(at),
            TokenTurn::Busy => None,
        };
        self.0.values().filter_map(due).min()
    }

    /// The answers that are known. A refused request is repeated within seconds, so the caller asks
    /// again soon enough to publish the refusal.
    pub(super) fn answers(&self, now: Duration) -> BTreeMap<TokenKey, TokenAnswer> {
        let answer = |token: &Token| match (&token.issued, &token.trouble) {
            (Some(issued), _) => Some(TokenAnswer::Issued(issued.clone())),
            (None, Some(TokenTrouble { why, told_from: Some(from) })) if *from <= now => {
                Some(TokenAnswer::Refused(why.as_str().into()))
            }
            (None, _) => None,
        };
        let known = self.0.iter().filter_map(|(key, token)| Some((key.clone(), answer(token)?)));
        known.collect()
    }
}

impl Issuing {
    /// The outcome for an answer of the API server.
    pub(super) fn of_answer(answer: Result<Sent, ApiError>, key: &TokenKey) -> Self {
        match answer {
            Ok(sent) if sent.status.token.is_empty() => {
                Self::Failed("the answer has no token".to_owned())
            }
            Ok(sent) => {
                // The API server may grant a shorter lifetime than the requested one.
                let seconds = sent.spec.expiration_seconds.unwrap_or(key.expiration_seconds);
                let lifetime = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
                Self::Issued { token: ServiceAccountToken::new(&sent.status.token), lifetime }
            }
            Err(error) if error.is_refusal() => {
                Self::Refused { is_forbidden: error.code() == Some(403), why: error.to_string() }
            }
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    /// The outcome for a name that no service account can have.
    pub(super) fn impossible() -> Self {
        let why = "the pod has no valid service account name".to_owned();
        Self::Refused { why, is_forbidden: false }
    }
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

    use super::*;

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

    fn issued(text: &str) -> Issuing {
        Issuing::Issued { token: ServiceAccountToken::new(text), lifetime: HOUR }
    }

    fn refused(is_forbidden: bool) -> Issuing {
        Issuing::Refused { why: "no".to_owned(), is_forbidden }
    }

    /// What pod `a` gets: the token, the words of a refusal, or nothing yet.
    fn answer(tokens: &Tokens, now: Duration) -> Option<String> {
        Some(match tokens.answers(now).remove(&key("a"))? {
            TokenAnswer::Issued(token) => String::from_utf8(token.as_bytes().to_vec()).unwrap(),
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
        assert_eq!(answer(&tokens, HOUR), None, "it is not known yet");
        tokens.settle(&key("a"), issued("one"), HOUR, Duration::ZERO);
        assert_eq!(answer(&tokens, HOUR).unwrap(), "one");
        let due = HOUR + MINUTE * 48;
        assert_eq!(tokens.wake_at(), Some(due));
        assert!(tokens.next(due - MINUTE).is_none());
        tokens.next(due).unwrap();
        tokens.settle(&key("a"), issued("two"), due, Duration::ZERO);
        assert_eq!(answer(&tokens, due).unwrap(), "two");
    }

    #[test]
    fn an_expired_token_stays_until_a_new_one_comes() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        tokens.next(HOUR).unwrap();
        tokens.settle(&key("a"), issued("one"), HOUR, Duration::ZERO);
        let later = HOUR * 9;
        for issuing in [Issuing::Failed("away".to_owned()), refused(false)] {
            tokens.hurry(later);
            tokens.next(later).unwrap();
            tokens.settle(&key("a"), issuing, later, Duration::ZERO);
            assert_eq!(answer(&tokens, later).unwrap(), "one");
        }
        assert!(tokens.wake_at().unwrap() <= later + super::super::super::MAX_PAUSE);
    }

    #[test]
    fn a_refusal_is_told_and_an_absence_is_not() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        let settle = |tokens: &mut Tokens, issuing, now| {
            tokens.hurry(now);
            tokens.next(now).unwrap();
            tokens.settle(&key("a"), issuing, now, Duration::ZERO);
            answer(tokens, now)
        };
        assert_eq!(settle(&mut tokens, Issuing::Failed("away".to_owned()), HOUR), None);
        let told = Some("refused: no".to_owned());
        assert_eq!(settle(&mut tokens, refused(false), HOUR), told);
        assert_eq!(settle(&mut tokens, Issuing::Failed("away".to_owned()), HOUR), None);
        assert_eq!(settle(&mut tokens, refused(true), HOUR), None, "the pod may be new there");
        assert_eq!(settle(&mut tokens, refused(true), HOUR + AUTHORIZER_LAG), told);
        assert_eq!(settle(&mut tokens, issued("one"), HOUR + MINUTE).unwrap(), "one");
    }

    #[test]
    fn tokens_of_a_pod_that_is_gone_are_dropped() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a", "b"]), HOUR);
        tokens.next(HOUR).unwrap();
        tokens.want(wanted(&["b"]), HOUR);
        tokens.settle(&key("a"), issued("one"), HOUR, Duration::ZERO);
        assert!(tokens.answers(HOUR).is_empty());
        assert_eq!(tokens.next(HOUR).unwrap().0, key("b"));
    }

    #[test]
    fn pods_without_a_token_come_first() {
        let mut tokens = Tokens::default();
        tokens.want(wanted(&["a"]), HOUR);
        tokens.next(HOUR).unwrap();
        tokens.settle(&key("a"), issued("one"), HOUR, Duration::ZERO);
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
