//! Requests to the API server as somebody, for what a test looks at often; kubectl is for what a
//! person sees.

use super::pki::{Authority, Identity};
use crate::support::block_on;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Method, Request, body::Bytes, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;
use std::{fmt::Write as _, net::SocketAddr, time::Duration};
use tokio_rustls::rustls::ClientConfig;

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Somebody who asks.
pub struct Client {
    server: SocketAddr,
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    deadline: Duration,
    token: Option<String>,
}

/// What the API server said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 200 and so on.
    pub status: u16,
    /// The headers of the answer.
    pub headers: HeaderMap,
    /// As it came.
    pub text: String,
}

impl Answer {
    /// The body, which must be JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|err| panic!("{err}: {} {}", self.status, self.text))
    }

    /// The body of a request that must have succeeded.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.status < 300, "{} {}", self.status, self.text);
        self.json()
    }
}

impl Client {
    /// Asks `server` as `identity`, or as nobody.
    pub fn new(server: SocketAddr, authority: &Authority, identity: Option<&Identity>) -> Self {
        Self::with_tls(server, authority.client_config(identity))
    }

    /// Asks `server` over HTTP/2 alone.
    pub fn over_http2(
        server: SocketAddr,
        authority: &Authority,
        identity: Option<&Identity>,
    ) -> Self {
        let tls = authority.client_config(identity);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http2().build();
        let http = HttpClient::builder(TokioExecutor::new()).http2_only(true).build(connector);
        Self { server, http, deadline: DEADLINE, token: None }
    }

    /// Asks `server` over such TLS.
    pub fn with_tls(server: SocketAddr, tls: ClientConfig) -> Self {
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().build();
        let http = HttpClient::builder(TokioExecutor::new()).build(connector);
        Self { server, http, deadline: DEADLINE, token: None }
    }

    /// One that sends a bearer token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// One that waits for an answer no longer than this.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What is at `path`, which must be there.
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        match self.send(Method::GET, path, None) {
            Ok(answer) => answer.ok(),
            Err(err) => panic!("{path}: {err}"),
        }
    }

    /// What is at `path`, if it is there and the API server answers.
    pub fn find(&self, path: &str) -> Option<Value> {
        let answer = self.send(Method::GET, path, None).ok()?;
        (answer.status == 200).then(|| answer.json())
    }

    /// Makes an object.
    ///
    /// # Errors
    /// In words, when there is no answer.
    pub fn create(&self, path: &str, object: &Value) -> Result<Answer, String> {
        self.send(Method::POST, path, Some(("application/json", object)))
    }

    /// Patches an object by a strategic merge.
    ///
    /// # Errors
    /// In words, when there is no answer.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Answer, String> {
        let kind = "application/strategic-merge-patch+json";
        self.send(Method::PATCH, path, Some((kind, patch)))
    }

    /// Deletes what is at `path`, at once.
    ///
    /// # Errors
    /// In words, when there is no answer.
    pub fn delete(&self, path: &str) -> Result<Answer, String> {
        self.send(Method::DELETE, &format!("{path}?gracePeriodSeconds=0"), None)
    }

    /// Sends any request.
    ///
    /// # Errors
    /// In words, when there is no answer.
    pub fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Answer, String> {
        block_on(self.ask(method, path, body))
    }

    /// As [`Self::send`], inside the runtime.
    ///
    /// # Errors
    /// In words, when there is no answer.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Answer, String> {
        let request = self.request(method, path, body)?;
        let asked = async {
            let response = self.http.request(request).await.map_err(|err| in_full(&err))?;
            let status = response.status().as_u16();
            let headers = response.headers().clone();
            let body = response.into_body().collect().await.map_err(|err| in_full(&err))?;
            let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            Ok(Answer { status, headers, text })
        };
        let answered = tokio::time::timeout(self.deadline, asked).await;
        answered.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.deadline)))
    }

    /// Watches what is at `path`, whose query contains `watch=1`, and calls `each` with every event
    /// until the API server ends the watch.
    ///
    /// # Errors
    /// In words, when the watch is refused or its connection breaks.
    pub async fn watch(&self, path: &str, mut each: impl FnMut(&Value)) -> Result<(), String> {
        let request = self.request(Method::GET, path, None)?;
        let response = self.http.request(request).await.map_err(|err| in_full(&err))?;
        if !response.status().is_success() {
            return Err(format!("{path}: {}", response.status()));
        }
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            let Ok(bytes) = frame.map_err(|err| in_full(&err))?.into_data() else { continue };
            text.extend_from_slice(&bytes);
            let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { continue };
            for line in text[..end].split(|byte| *byte == b'\n') {
                each(&serde_json::from_slice(line).map_err(|err| in_full(&err))?);
            }
            text.drain(..=end);
        }
        Ok(())
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request =
            Request::builder().method(method).uri(format!("https://{}{path}", self.server));
        let mut bytes = Bytes::new();
        if let Some((kind, value)) = body {
            request = request.header(header::CONTENT_TYPE, kind);
            bytes = value.to_string().into();
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.body(Full::new(bytes)).map_err(|err| err.to_string())
    }
}

/// An error with its causes.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
