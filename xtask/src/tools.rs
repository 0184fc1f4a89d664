//! Tools that the checks need and that cargo can install, kept in the user's cache folder.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use xtask::cargo;

const CARGO_DENY: (&str, &str) = ("cargo-deny", "0.20.2");

/// Returns the path of `cargo-deny`, which is installed on first use.
pub(crate) fn cargo_deny() -> anyhow::Result<PathBuf> {
    let (name, version) = CARGO_DENY;
    let folder = xtask::folders::cache()?.join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    let works = Command::new(&program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !works.is_ok_and(|status| status.success()) {
        println!("installing {name} {version} (once, about 3 minutes on two cores)");
        let mut install = cargo::cargo(&["install", name, "--version", version, "--locked", "--quiet"]);
        // The workspace's own target folder would be locked and polluted.
        cargo::run(install.arg("--root").arg(&folder).env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(program)
}
