// Calls of the mesh's HTTP API: with the key, and with errors in the API's own words.

const KEY = "pagemesh.key";

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** What the API refused, or that it could not be asked; `status` is 0 for the latter. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** An answer with status 200; raises ApiError, or AbortError when `signal` says so. */
export async function call(path, { method = "GET", body, headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (key.get()) sent.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      method, headers: sent, signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    throw asApiError(error);
  }
  if (!response.ok) throw new ApiError(response.status, await wordsOf(response));
  return response;
}

async function wordsOf(response) {
  const text = await response.text().catch(() => "");
  return (sentenceOf(text) || `The answer was ${response.status} ${response.statusText}`).trim();
}

function sentenceOf(text) {
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : error?.message;
  } catch {
    return text.slice(0, 500);
  }
}

function asApiError(error) {
  if (error.name === "AbortError" || error instanceof ApiError) return error;
  return new ApiError(0, "The gateway cannot be reached.");
}

/** The payloads of an event stream, one by one, up to its end or "[DONE]". */
export async function* payloads(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw asApiError(error);
      });
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        // Comments keep the connection alive; names of events repeat what their payload says.
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    // Tells the mesh that nobody listens any more.
    reader.cancel().catch(() => {});
  }
}

/** A name for a request; crypto.randomUUID is only there over TLS. */
export function newRequestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `page-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
