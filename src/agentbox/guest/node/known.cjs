// SPDX-License-Identifier: MIT
// Special networks and protected names as guest/tables.py gives them; written by tests/vectors/make_node_lists.py.
'use strict';

module.exports = {
 "special": [
  [
   4,
   "00000000",
   8
  ],
  [
   4,
   "0a000000",
   8
  ],
  [
   4,
   "64400000",
   10
  ],
  [
   4,
   "7f000000",
   8
  ],
  [
   4,
   "a9fe0000",
   16
  ],
  [
   4,
   "ac100000",
   12
  ],
  [
   4,
   "c0000000",
   24
  ],
  [
   4,
   "c0000200",
   24
  ],
  [
   4,
   "c0586300",
   24
  ],
  [
   4,
   "c0a80000",
   16
  ],
  [
   4,
   "c6120000",
   15
  ],
  [
   4,
   "c6336400",
   24
  ],
  [
   4,
   "cb007100",
   24
  ],
  [
   4,
   "e0000000",
   4
  ],
  [
   4,
   "f0000000",
   4
  ],
  [
   6,
   "00000000000000000000000000000000",
   96
  ],
  [
   6,
   "0000000000000000ffff000000000000",
   96
  ],
  [
   6,
   "0064ff9b000000000000000000000000",
   96
  ],
  [
   6,
   "0064ff9b000100000000000000000000",
   48
  ],
  [
   6,
   "01000000000000000000000000000000",
   64
  ],
  [
   6,
   "20010000000000000000000000000000",
   23
  ],
  [
   6,
   "20010db8000000000000000000000000",
   32
  ],
  [
   6,
   "20020000000000000000000000000000",
   16
  ],
  [
   6,
   "fc000000000000000000000000000000",
   7
  ],
  [
   6,
   "fe800000000000000000000000000000",
   10
  ],
  [
   6,
   "fec00000000000000000000000000000",
   10
  ],
  [
   6,
   "ff000000000000000000000000000000",
   8
  ]
 ],
 "protected": {
  "names": {
   ".husky": "git or a hook runner executes it at the next commit, checkout or status",
   ".githooks": "git or a hook runner executes it at the next commit, checkout or status",
   ".pre-commit-config.yaml": "git or a hook runner executes it at the next commit, checkout or status",
   ".pre-commit-config.yml": "git or a hook runner executes it at the next commit, checkout or status",
   "lefthook.yml": "git or a hook runner executes it at the next commit, checkout or status",
   "lefthook.yaml": "git or a hook runner executes it at the next commit, checkout or status",
   ".lefthook.yml": "git or a hook runner executes it at the next commit, checkout or status",
   ".lefthook": "git or a hook runner executes it at the next commit, checkout or status",
   ".overcommit.yml": "git or a hook runner executes it at the next commit, checkout or status",
   ".gitconfig": "git or a hook runner executes it at the next commit, checkout or status",
   "config.worktree": "git or a hook runner executes it at the next commit, checkout or status",
   ".envrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".direnvrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".autoenv": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".autoenv.zsh": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".bashrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".bash_profile": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".bash_login": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".bash_logout": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".bash_aliases": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".profile": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".zshrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".zshenv": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".zprofile": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".zlogin": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".zlogout": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".kshrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".mkshrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".cshrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".tcshrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".login": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".logout": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".xprofile": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".xinitrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".xsessionrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".tmux.conf": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".screenrc": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".ssh": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".mise.toml": "a shell or a shell plugin reads it when a directory or a session is entered",
   "mise.toml": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".tool-versions": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".vscode": "an editor takes commands and settings from it when the folder is opened",
   ".idea": "an editor takes commands and settings from it when the folder is opened",
   ".vs": "an editor takes commands and settings from it when the folder is opened",
   ".fleet": "an editor takes commands and settings from it when the folder is opened",
   ".zed": "an editor takes commands and settings from it when the folder is opened",
   ".vscode-server": "an editor takes commands and settings from it when the folder is opened",
   ".devcontainer": "an editor takes commands and settings from it when the folder is opened",
   ".devcontainer.json": "an editor takes commands and settings from it when the folder is opened",
   ".exrc": "an editor takes commands and settings from it when the folder is opened",
   ".vimrc": "an editor takes commands and settings from it when the folder is opened",
   ".gvimrc": "an editor takes commands and settings from it when the folder is opened",
   ".nvimrc": "an editor takes commands and settings from it when the folder is opened",
   ".nvim.lua": "an editor takes commands and settings from it when the folder is opened",
   ".vim": "an editor takes commands and settings from it when the folder is opened",
   ".emacs": "an editor takes commands and settings from it when the folder is opened",
   ".emacs.d": "an editor takes commands and settings from it when the folder is opened",
   ".dir-locals.el": "an editor takes commands and settings from it when the folder is opened",
   ".dir-locals-2.el": "an editor takes commands and settings from it when the folder is opened",
   ".gitlab-ci.yml": "a continuous integration service executes it after the next push",
   ".gitlab-ci.yaml": "a continuous integration service executes it after the next push",
   ".circleci": "a continuous integration service executes it after the next push",
   ".travis.yml": "a continuous integration service executes it after the next push",
   ".buildkite": "a continuous integration service executes it after the next push",
   ".drone.yml": "a continuous integration service executes it after the next push",
   ".drone.yaml": "a continuous integration service executes it after the next push",
   ".woodpecker": "a continuous integration service executes it after the next push",
   ".woodpecker.yml": "a continuous integration service executes it after the next push",
   ".woodpecker.yaml": "a continuous integration service executes it after the next push",
   ".forgejo": "a continuous integration service executes it after the next push",
   ".gitea": "a continuous integration service executes it after the next push",
   ".azure-pipelines": "a continuous integration service executes it after the next push",
   "azure-pipelines.yml": "a continuous integration service executes it after the next push",
   "azure-pipelines.yaml": "a continuous integration service executes it after the next push",
   "bitbucket-pipelines.yml": "a continuous integration service executes it after the next push",
   "appveyor.yml": "a continuous integration service executes it after the next push",
   ".appveyor.yml": "a continuous integration service executes it after the next push",
   "cloudbuild.yaml": "a continuous integration service executes it after the next push",
   "cloudbuild.yml": "a continuous integration service executes it after the next push",
   ".cirrus.yml": "a continuous integration service executes it after the next push",
   ".semaphore": "a continuous integration service executes it after the next push",
   "jenkinsfile": "a continuous integration service executes it after the next push",
   ".claude": "a coding agent takes commands, servers or instructions from it",
   ".claude.json": "a coding agent takes commands, servers or instructions from it",
   "claude.md": "a coding agent takes commands, servers or instructions from it",
   "claude.local.md": "a coding agent takes commands, servers or instructions from it",
   ".mcp.json": "a coding agent takes commands, servers or instructions from it",
   "mcp.json": "a coding agent takes commands, servers or instructions from it",
   ".cursor": "a coding agent takes commands, servers or instructions from it",
   ".cursorrules": "a coding agent takes commands, servers or instructions from it",
   ".codex": "a coding agent takes commands, servers or instructions from it",
   "agents.md": "a coding agent takes commands, servers or instructions from it",
   ".gemini": "a coding agent takes commands, servers or instructions from it",
   "gemini.md": "a coding agent takes commands, servers or instructions from it",
   ".continue": "a coding agent takes commands, servers or instructions from it",
   ".windsurf": "a coding agent takes commands, servers or instructions from it",
   ".windsurfrules": "a coding agent takes commands, servers or instructions from it",
   ".aider.conf.yml": "a coding agent takes commands, servers or instructions from it",
   ".cline": "a coding agent takes commands, servers or instructions from it",
   ".clinerules": "a coding agent takes commands, servers or instructions from it",
   ".roo": "a coding agent takes commands, servers or instructions from it",
   ".roorules": "a coding agent takes commands, servers or instructions from it",
   ".opencode": "a coding agent takes commands, servers or instructions from it",
   "opencode.json": "a coding agent takes commands, servers or instructions from it",
   ".goosehints": "a coding agent takes commands, servers or instructions from it",
   ".kiro": "a coding agent takes commands, servers or instructions from it",
   ".junie": "a coding agent takes commands, servers or instructions from it",
   ".augment": "a coding agent takes commands, servers or instructions from it",
   ".amp": "a coding agent takes commands, servers or instructions from it",
   ".qwen": "a coding agent takes commands, servers or instructions from it",
   "sitecustomize.py": "a program loads it by itself when it starts",
   "usercustomize.py": "a program loads it by itself when it starts",
   "conftest.py": "a program loads it by itself when it starts",
   ".pdbrc": "a program loads it by itself when it starts",
   ".pdbrc.py": "a program loads it by itself when it starts",
   ".gdbinit": "a program loads it by itself when it starts",
   ".lldbinit": "a program loads it by itself when it starts",
   ".npmrc": "a program loads it by itself when it starts",
   ".yarnrc": "a program loads it by itself when it starts",
   ".yarnrc.yml": "a program loads it by itself when it starts",
   ".pnp.cjs": "a program loads it by itself when it starts",
   ".pnp.loader.mjs": "a program loads it by itself when it starts",
   ".pnpmfile.cjs": "a program loads it by itself when it starts",
   "bunfig.toml": "a program loads it by itself when it starts",
   "pip.conf": "a program loads it by itself when it starts",
   "pip.ini": "a program loads it by itself when it starts",
   ".bazelrc": "a program loads it by itself when it starts",
   ".mvn": "a program loads it by itself when it starts",
   ".rprofile": "a program loads it by itself when it starts",
   ".irbrc": "a program loads it by itself when it starts",
   ".pryrc": "a program loads it by itself when it starts",
   ".curlrc": "a program loads it by itself when it starts",
   ".wgetrc": "a program loads it by itself when it starts",
   ".agentbox": "it is the policy or the evidence of a later run",
   "agentbox.policy": "it is the policy or the evidence of a later run"
  },
  "sequences": [
   [
    ".git",
    "hooks",
    "git or a hook runner executes it at the next commit, checkout or status"
   ],
   [
    ".git",
    "config",
    "git or a hook runner executes it at the next commit, checkout or status"
   ],
   [
    ".git",
    "config.worktree",
    "git or a hook runner executes it at the next commit, checkout or status"
   ],
   [
    ".git",
    "info",
    "git or a hook runner executes it at the next commit, checkout or status"
   ],
   [
    ".github",
    "workflows",
    "a continuous integration service executes it after the next push"
   ],
   [
    ".github",
    "actions",
    "a continuous integration service executes it after the next push"
   ],
   [
    ".github",
    "copilot-instructions.md",
    "a coding agent takes commands, servers or instructions from it"
   ],
   [
    ".github",
    "instructions",
    "a coding agent takes commands, servers or instructions from it"
   ],
   [
    ".config",
    "git",
    "git or a hook runner executes it at the next commit, checkout or status"
   ],
   [
    ".config",
    "fish",
    "a shell or a shell plugin reads it when a directory or a session is entered"
   ],
   [
    ".config",
    "autostart",
    "a shell or a shell plugin reads it when a directory or a session is entered"
   ],
   [
    ".config",
    "systemd",
    "a shell or a shell plugin reads it when a directory or a session is entered"
   ],
   [
    ".config",
    "nvim",
    "an editor takes commands and settings from it when the folder is opened"
   ],
   [
    ".config",
    "pip",
    "a program loads it by itself when it starts"
   ],
   [
    ".cargo",
    "config",
    "a program loads it by itself when it starts"
   ],
   [
    ".cargo",
    "config.toml",
    "a program loads it by itself when it starts"
   ],
   [
    ".bundle",
    "config",
    "a program loads it by itself when it starts"
   ],
   [
    ".yarn",
    "releases",
    "a program loads it by itself when it starts"
   ],
   [
    ".yarn",
    "plugins",
    "a program loads it by itself when it starts"
   ]
  ],
  "last": {
   ".git": "git or a hook runner executes it at the next commit, checkout or status",
   ".github": "a continuous integration service executes it after the next push",
   ".config": "a shell or a shell plugin reads it when a directory or a session is entered",
   ".cargo": "a program loads it by itself when it starts",
   ".yarn": "a program loads it by itself when it starts"
  },
  "suffixes": {
   ".pth": "a program loads it by itself when it starts",
   ".code-workspace": "an editor takes commands and settings from it when the folder is opened",
   ".sublime-project": "an editor takes commands and settings from it when the folder is opened"
  },
  "submodule": {
   "hooks": "git or a hook runner executes it at the next commit, checkout or status",
   "config": "git or a hook runner executes it at the next commit, checkout or status"
  }
 }
};
