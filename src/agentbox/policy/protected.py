# SPDX-License-Identifier: MIT
"""Files that run later, outside the box, without being asked for: hooks, shell and editor start files, CI, agents.

`protect: on` refuses writing them, wherever below a write grant they lie, and also the bare names whose appearance
would make such a file of what is already there (`.git`: a directory renamed to it brings its hooks along). A file that
is run only when somebody asks for it by name (Makefile, package.json, setup.py) is not refused; `NOTICED` names those
for a run's summary. Names are compared without regard to case, because some file systems do so.
"""

from __future__ import annotations

from agentbox.policy.record import MappingProxyType

_HOOK = "git or a hook runner executes it at the next commit, checkout or status"
_SHELL = "a shell or a shell plugin reads it when a directory or a session is entered"
_EDITOR = "an editor takes commands and settings from it when the folder is opened"
_CI = "a continuous integration service executes it after the next push"
_AGENT = "a coding agent takes commands, servers or instructions from it"
_START = "a program loads it by itself when it starts"
_POLICY = "it is the policy or the evidence of a later run"

# A path that has one of these names as a part is protected, and so is everything below that part.
_NAMES_BY_REASON = {
    _HOOK: """
        .husky .githooks .pre-commit-config.yaml .pre-commit-config.yml lefthook.yml lefthook.yaml .lefthook.yml
        .lefthook .overcommit.yml .gitconfig config.worktree""",
    _SHELL: """
        .envrc .direnvrc .autoenv .autoenv.zsh .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile
        .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .mkshrc .cshrc .tcshrc .login .logout .xprofile .xinitrc
        .xsessionrc .tmux.conf .screenrc .ssh .mise.toml mise.toml .tool-versions""",
    _EDITOR: """
        .vscode .idea .vs .fleet .zed .vscode-server .devcontainer .devcontainer.json .exrc .vimrc .gvimrc .nvimrc
        .nvim.lua .vim .emacs .emacs.d .dir-locals.el .dir-locals-2.el""",
    _CI: """
        .gitlab-ci.yml .gitlab-ci.yaml .circleci .travis.yml .buildkite .drone.yml .drone.yaml .woodpecker
        .woodpecker.yml .woodpecker.yaml .forgejo .gitea .azure-pipelines azure-pipelines.yml azure-pipelines.yaml
        bitbucket-pipelines.yml appveyor.yml .appveyor.yml cloudbuild.yaml cloudbuild.yml .cirrus.yml .semaphore
        jenkinsfile""",
    _AGENT: """
        .claude .claude.json claude.md claude.local.md .mcp.json mcp.json .cursor .cursorrules .codex agents.md
        .gemini gemini.md .continue .windsurf .windsurfrules .aider.conf.yml .cline .clinerules .roo .roorules
        .opencode opencode.json .goosehints .kiro .junie .augment .amp .qwen""",
    _START: """
        sitecustomize.py usercustomize.py conftest.py .pdbrc .pdbrc.py .gdbinit .lldbinit .npmrc .yarnrc .yarnrc.yml
        .pnp.cjs .pnp.loader.mjs .pnpmfile.cjs bunfig.toml pip.conf pip.ini .bazelrc .mvn .rprofile .irbrc .pryrc
        .curlrc .wgetrc""",
    _POLICY: ".agentbox agentbox.policy",
}
NAMES = MappingProxyType({name: why for why, names in _NAMES_BY_REASON.items() for name in names.split()})

# Parts that follow each other; what lies below is protected too.
SEQUENCES = MappingProxyType(
    {
        (".git", "hooks"): _HOOK,
        (".git", "config"): _HOOK,
        (".git", "config.worktree"): _HOOK,
        (".git", "info"): _HOOK,
        (".github", "workflows"): _CI,
        (".github", "actions"): _CI,
        (".github", "copilot-instructions.md"): _AGENT,
        (".github", "instructions"): _AGENT,
        (".config", "git"): _HOOK,
        (".config", "fish"): _SHELL,
        (".config", "autostart"): _SHELL,
        (".config", "systemd"): _SHELL,
        (".config", "nvim"): _EDITOR,
        (".config", "pip"): _START,
        (".cargo", "config"): _START,
        (".cargo", "config.toml"): _START,
        (".bundle", "config"): _START,
        (".yarn", "releases"): _START,
        (".yarn", "plugins"): _START,
    }
)

# Protected as the last part only: what is made or renamed to this name, not what lies below.
LAST_PARTS = MappingProxyType({".git": _HOOK, ".github": _CI, ".config": _SHELL, ".cargo": _START, ".yarn": _START})

SUFFIXES = MappingProxyType({".pth": _START, ".code-workspace": _EDITOR, ".sublime-project": _EDITOR})

# Within `.git/modules` a submodule's own hooks and config lie at any depth.
_IN_SUBMODULE = MappingProxyType({"hooks": _HOOK, "config": _HOOK})

_NOTICED = """
    makefile gnumakefile justfile rakefile package.json setup.py setup.cfg pyproject.toml tox.ini noxfile.py tasks.py
    build.gradle build.gradle.kts pom.xml build.rs cmakelists.txt dockerfile compose.yaml compose.yml
    docker-compose.yml docker-compose.yaml gulpfile.js gruntfile.js vite.config.js webpack.config.js .gitattributes
    .gitmodules .env
"""
NOTICED = frozenset(_NOTICED.split())


def why_protected(path: str) -> str:
    """Why writing `path` would let something run later outside; '' when it would not."""
    parts = path.lower().split("/")
    before = ""
    submodules = False
    for part in parts:
        why = NAMES.get(part) or SEQUENCES.get((before, part)) or (_IN_SUBMODULE.get(part) if submodules else None)
        if why:
            return why
        submodules = submodules or (before == ".git" and part == "modules")
        before = part
    last = parts[-1]
    dot = last.rfind(".")
    return LAST_PARTS.get(last) or (SUFFIXES.get(last[dot:], "") if dot >= 0 else "")


def is_noticed(path: str) -> bool:
    """Whether a run's summary should name a write to `path`: a file that somebody will run by name."""
    return path.rpartition("/")[2].lower() in NOTICED
