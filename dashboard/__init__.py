"""The dashboard: a web page for operators, as the files that a browser loads.

`assets` gives the files with their headers; `api` serves them under `/dashboard/`. The page is
plain HTML, CSS and ES modules, without a build step. Read in this order: `index.html`, `app.js`
(routes and life of the page), `http.js` (token, calls, subscription), `dom.js` (how data becomes
nodes), `poll.js`, then the views: `overview.js`, `instances.js`, `instance.js` with `timeline.js`
and `history.js`, `limits.js`, `server.js`, `migration.js`.

Never: anything but the public HTTP API; data put in as HTML; anything loaded from elsewhere.
"""

if __name__ != "toque.dashboard":
    raise ImportError(f"import this package as 'toque.dashboard', not as {__name__!r}")
