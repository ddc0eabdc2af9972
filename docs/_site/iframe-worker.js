// Search for readers who open the site from a folder. Browsers start no worker for such a page, so
// here the worker's script runs in a hidden frame. The theme looks for the name IFrameWorker.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = async (...urls) => {
        for (const each of urls) await IFrameWorker.load(inside, each);
      };
      this.frame = frame;
      this.loaded = IFrameWorker.load(inside, url);
      this.loaded.catch((error) => this.dispatchEvent(new ErrorEvent("error", { error })));
    }

    static load(inside, url) {
      return new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = done;
        script.onerror = () => failed(new Error(`${script.src} cannot be read`));
        inside.document.body.append(script);
      });
    }

    postMessage(data) {
      const told = () => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded.then(told, () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
