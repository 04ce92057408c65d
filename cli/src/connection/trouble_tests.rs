use super::*;

fn timestamp(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn each_trouble_has_its_own_message() {
    let end = timestamp("2026-01-02T03:04:05Z");
    let url = || "https://10.0.0.1:6443/".to_owned();
    let text = |text: &str| Failed::Text(text.to_owned());
    let troubles = [
        Trouble::from_kubeconfig(&KubeconfigError::LoadContext("prod".to_owned())),
        Trouble::from_kubeconfig(&KubeconfigError::CurrentContextNotSet),
        Trouble::from_kubeconfig(&KubeconfigError::FindPath),
        Trouble::from_failure(Failed::Status(401, String::new()), Some(end), None, url()),
        Trouble::from_failure(Failed::Status(401, String::new()), None, None, url()),
        Trouble::from_failure(Failed::Status(503, "etcd is down".to_owned()), None, None, url()),
        Trouble::from_failure(
            text("client error (Connect): invalid peer certificate: UnknownIssuer"),
            None,
            None,
            url(),
        ),
        Trouble::from_failure(
            text("client error (Connect): Connection refused (os error 111)"),
            None,
            None,
            url(),
        ),
        Trouble::from_failure(
            Failed::from(kube::Error::Auth(AuthError::AuthExec("refused".to_owned()))),
            None,
            Some("aws".to_owned()),
            url(),
        ),
        Trouble::from_failure(
            Failed::from(kube::Error::Service(Box::new(AuthError::MissingCommand))),
            None,
            None,
            url(),
        ),
    ];
    let lines: Vec<String> = troubles
        .iter()
        .map(|trouble| {
            let (what, remedy) = trouble.words();
            format!("{what}\n    {remedy}")
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn a_parse_error_shows_nothing_of_the_kubeconfig() {
    let error = kube::config::Kubeconfig::from_yaml("users: [{token: secret}").unwrap_err();
    let Trouble::Kubeconfig(text) = Trouble::from_kubeconfig(&error) else { panic!("another") };
    assert!(
        text.contains("failed to parse") && !text.contains("secret") && text.lines().count() == 1,
        "{text}"
    );
}

#[test]
fn an_expired_certificate_is_found_in_the_kubeconfig() {
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let pem = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let user = AuthInfo { client_certificate_data: Some(STANDARD.encode(pem)), ..AuthInfo::default() };
    assert_eq!(ended(&user, timestamp("2026-01-01T00:00:00Z")), Some(timestamp("2021-01-01T00:00:00Z")));
    assert_eq!(ended(&user, timestamp("2020-06-01T00:00:00Z")), None);
    assert_eq!(ended(&AuthInfo::default(), timestamp("2026-01-01T00:00:00Z")), None);
}

#[test]
fn a_failed_plugin_is_reported_by_its_stderr_and_not_its_stdout() {
    use std::os::unix::process::ExitStatusExt as _;
    let out = std::process::Output {
        status: std::process::ExitStatus::from_raw(255 << 8),
        stdout: b"a token".to_vec(),
        stderr: b"a warning\nThe SSO session has ended\n\n".to_vec(),
    };
    let error = AuthError::AuthExecRun { cmd: "aws".to_owned(), out: Box::new(out) };
    assert_eq!(login_text(&error), "it ended with exit status: 255: The SSO session has ended");
}
