//! Questions of the HTTPS API about its clients, which the API server answers: whose token is it
//! (TokenReview), and may a user do something (SubjectAccessReview)?

use super::{ApiError, Link, Verb, call};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec},
};
use std::time::Duration;
use thiserror::Error;
use tokio::time::sleep;

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// A question is asked this often, with growing pauses, where the API server has trouble.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ReviewError {
    /// The kubeconfig was not read yet, or can't be used.
    #[error("no API server is known")]
    NoServer,
    /// The request has failed.
    #[error(transparent)]
    Failed(#[from] ApiError),
}

/// The user that has a bearer token; `None`: nobody.
///
/// # Errors
/// When the API server does not answer.
pub async fn review_token(link: Link, token: String) -> Result<Option<UserInfo>, ReviewError> {
    let review =
        TokenReview { spec: TokenReviewSpec { token, audiences: None }, ..TokenReview::default() };
    let status = ask::<TokenReview>(link, TOKENS, &review).await?.status.unwrap_or_default();
    Ok(status.user.filter(|user| status.authenticated == Some(true) && user.username.is_some()))
}

/// Whether a user may do something.
///
/// # Errors
/// When the API server does not answer.
pub async fn review_access(link: Link, spec: SubjectAccessReviewSpec) -> Result<bool, ReviewError> {
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let status = ask::<SubjectAccessReview>(link, ACCESS, &review).await?.status;
    Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

async fn ask<T>(link: Link, path: &str, review: &T) -> Result<T, ReviewError>
where
    T: serde::Serialize + serde::de::DeserializeOwned + Sync,
{
    let clients = link.ok_or(ReviewError::NoServer)?;
    let mut tries = 1;
    loop {
        match call(&clients.main, Verb::Create, path, Some(review)).await {
            Err(error) if tries < TRIES && error.may_pass() => {
                sleep(PAUSE * tries).await;
                tries += 1;
            }
            answer => return Ok(answer?),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::{super::Clients, *};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn server(status: Value) -> Link {
        let answer = move |_: &http::Method, path: &str, body: Value| {
            let mut review = body;
            assert!(path.ends_with("reviews"), "{path}");
            review["status"] = status.clone();
            (201, review)
        };
        Some(Arc::new(Clients::of_server(answer)))
    }

    #[tokio::test]
    async fn only_an_authenticated_token_has_a_user() {
        for (status, user) in [
            (json!({"authenticated": true, "user": {"username": "jane"}}), Some("jane")),
            (json!({"authenticated": false, "user": {"username": "jane"}}), None),
            (json!({"user": {"username": "jane"}}), None),
            (json!({"authenticated": true, "user": {}}), None),
            (json!({"authenticated": true}), None),
            (json!({}), None),
        ] {
            let found = review_token(server(status.clone()), "t".to_owned()).await.unwrap();
            assert_eq!(found.and_then(|user| user.username).as_deref(), user, "{status}");
        }
        review_token(None, "t".to_owned()).await.unwrap_err();
    }

    #[tokio::test]
    async fn only_what_is_allowed_and_not_denied_may_be_done() {
        for (status, allowed) in [
            (json!({"allowed": true}), true),
            (json!({"allowed": false}), false),
            (json!({"allowed": true, "denied": true}), false),
            (json!({"allowed": false, "reason": "no", "evaluationError": "broken"}), false),
        ] {
            let spec = SubjectAccessReviewSpec::default();
            let found = review_access(server(status.clone()), spec).await.unwrap();
            assert_eq!(found, allowed, "{status}");
        }
        let refusing = Some(Arc::new(Clients::of_server(|_, _, _| {
            (403, json!({"kind": "Status", "code": 403, "message": "no", "reason": "Forbidden"}))
        })));
        review_access(refusing, SubjectAccessReviewSpec::default()).await.unwrap_err();
    }
}
